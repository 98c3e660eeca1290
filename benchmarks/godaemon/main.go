// The control of benchmarks/daemon.py: the daemon's two busiest routes in Go's net/http, and the load
// for both. Of the standard library alone; not shipped.
package main

import (
	"fmt"
	"os"
)

func main() {
	if len(os.Args) < 2 {
		fail("usage: godaemon serve | start | exec | upload | output …")
	}
	commands := map[string]func([]string) error{
		"serve": serve, "start": start, "exec": execLoad, "upload": upload, "output": output,
	}
	command, known := commands[os.Args[1]]
	if !known {
		fail("no such command: " + os.Args[1])
	}
	if err := command(os.Args[2:]); err != nil {
		fail(err.Error())
	}
}

func fail(text string) {
	fmt.Fprintln(os.Stderr, text)
	os.Exit(1)
}
