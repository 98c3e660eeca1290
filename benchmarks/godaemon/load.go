package main

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"sort"
	"strings"
	"sync"
	"time"
)

// The load speaks HTTP by hand: net/http's client would take more of the machine than the daemons do.

func print(values map[string]any) error { return json.NewEncoder(os.Stdout).Encode(values) }

// start starts a program n times and measures until its port takes a connection, until it says that it
// lives, and until it answers a call with a token.
func start(arguments []string) error {
	options := flag.NewFlagSet("start", flag.ExitOnError)
	port := options.Int("port", 0, "where it will listen")
	token := options.String("token", "", "for it")
	times := options.Int("n", 20, "how often")
	_ = options.Parse(arguments)
	var listening, living, ready []float64
	for range *times {
		a, b, c, err := startOnce(options.Args(), *port, *token)
		if err != nil {
			return err
		}
		listening, living, ready = append(listening, a), append(living, b), append(ready, c)
	}
	return print(map[string]any{"listening_ms": listening, "living_ms": living, "ready_ms": ready})
}

func startOnce(program []string, port int, token string) (float64, float64, float64, error) {
	command := exec.Command(program[0], program[1:]...)
	began := time.Now()
	if err := command.Start(); err != nil {
		return 0, 0, 0, err
	}
	defer func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	}()
	for {
		conn, err := net.Dial("tcp", address(port))
		if err == nil {
			listening := time.Since(began)
			defer conn.Close()
			reader := bufio.NewReader(conn)
			if err := get(conn, reader, "/healthz", token); err != nil {
				return 0, 0, 0, err
			}
			living := time.Since(began)
			err := get(conn, reader, "/v1/info", token)
			return ms(listening), ms(living), ms(time.Since(began)), err
		}
		if time.Since(began) > 10*time.Second {
			return 0, 0, 0, errors.New("it does not listen")
		}
		time.Sleep(100 * time.Microsecond)
	}
}

func get(conn net.Conn, reader *bufio.Reader, path, token string) error {
	if _, err := conn.Write(request("GET", path, token, "", 0)); err != nil {
		return err
	}
	response, err := http.ReadResponse(reader, nil)
	if err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, response.Body); err != nil || response.StatusCode != 200 {
		return fmt.Errorf("%s: status %d, %w", path, response.StatusCode, err)
	}
	return nil
}

func address(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

func ms(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e6 }

type caller struct {
	conn   net.Conn
	reader *bufio.Reader
}

func dial(port int) (*caller, error) {
	conn, err := net.Dial("tcp", address(port))
	if err != nil {
		return nil, err
	}
	return &caller{conn, bufio.NewReaderSize(conn, 256*1024)}, nil
}

func request(method, target, token string, headers string, length int) []byte {
	return fmt.Appendf(nil, "%s %s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\n%sContent-Length: %d\r\n\r\n",
		method, target, token, headers, length)
}

// execLoad runs a program by this many connections for this long.
func execLoad(arguments []string) error {
	options := flag.NewFlagSet("exec", flag.ExitOnError)
	port := options.Int("port", 0, "of the daemon")
	token := options.String("token", "", "for it")
	concurrency := options.Int("c", 1, "connections")
	seconds := options.Float64("seconds", 3, "how long")
	_ = options.Parse(arguments)
	body, _ := json.Marshal(map[string]any{"argv": options.Args()})
	call := append(request("POST", "/v1/exec", *token, "Content-Type: application/json\r\n", len(body)), body...)
	began := time.Now()
	until := began.Add(time.Duration(*seconds * float64(time.Second)))
	var lock sync.Mutex
	var all []float64
	var failure error
	var group sync.WaitGroup
	for range *concurrency {
		group.Go(func() {
			times, err := callUntil(*port, call, until)
			lock.Lock()
			defer lock.Unlock()
			all, failure = append(all, times...), errors.Join(failure, err)
		})
	}
	group.Wait()
	if failure != nil {
		return failure
	}
	took := time.Since(began).Seconds()
	sort.Float64s(all)
	return print(map[string]any{
		"per_s": float64(len(all)) / took, "p50_ms": all[len(all)/2], "p99_ms": all[len(all)*99/100], "calls": len(all),
	})
}

func callUntil(port int, call []byte, until time.Time) ([]float64, error) {
	c, err := dial(port)
	if err != nil {
		return nil, err
	}
	defer c.conn.Close()
	var times []float64
	for len(times) == 0 || time.Now().Before(until) {
		began := time.Now()
		if _, err := c.conn.Write(call); err != nil {
			return nil, err
		}
		response, err := http.ReadResponse(c.reader, nil)
		if err != nil {
			return nil, err
		}
		data, err := io.ReadAll(response.Body)
		if err != nil {
			return nil, err
		}
		times = append(times, ms(time.Since(began)))
		if response.StatusCode != 200 || !strings.Contains(strings.ReplaceAll(string(data), " ", ""), `"exit_code":0`) {
			return nil, fmt.Errorf("status %d: %s", response.StatusCode, data)
		}
	}
	return times, nil
}

// upload sends a file of zeros.
func upload(arguments []string) error {
	options := flag.NewFlagSet("upload", flag.ExitOnError)
	port := options.Int("port", 0, "of the daemon")
	token := options.String("token", "", "for it")
	size := options.Int("bytes", 256<<20, "how many")
	path := options.String("path", "", "where to")
	_ = options.Parse(arguments)
	c, err := dial(*port)
	if err != nil {
		return err
	}
	defer c.conn.Close()
	piece := make([]byte, 256*1024)
	began := time.Now()
	if _, err := c.conn.Write(request("PUT", "/v1/files?path="+*path, *token, "", *size)); err != nil {
		return err
	}
	for left := *size; left > 0; left -= len(piece) {
		if _, err := c.conn.Write(piece[:min(left, len(piece))]); err != nil {
			return err
		}
	}
	response, err := http.ReadResponse(c.reader, nil)
	if err != nil {
		return err
	}
	data, _ := io.ReadAll(response.Body)
	took := time.Since(began).Seconds()
	var document struct{ Size int }
	if json.Unmarshal(data, &document); response.StatusCode != 200 || document.Size != *size {
		return fmt.Errorf("status %d: %s", response.StatusCode, data)
	}
	return print(map[string]any{"mb_per_s": float64(*size) / 1e6 / took})
}

// output reads what a program writes, as frames.
func output(arguments []string) error {
	options := flag.NewFlagSet("output", flag.ExitOnError)
	port := options.Int("port", 0, "of the daemon")
	token := options.String("token", "", "for it")
	size := options.Int("bytes", 256<<20, "how many it writes")
	_ = options.Parse(arguments)
	c, err := dial(*port)
	if err != nil {
		return err
	}
	defer c.conn.Close()
	body, _ := json.Marshal(map[string]any{"argv": options.Args()})
	headers := "Content-Type: application/json\r\nAccept: " + frames + "\r\n"
	began := time.Now()
	if _, err := c.conn.Write(append(request("POST", "/v1/exec", *token, headers, len(body)), body...)); err != nil {
		return err
	}
	response, err := http.ReadResponse(c.reader, nil)
	if err != nil {
		return err
	}
	read, err := readFrames(response.Body)
	took := time.Since(began).Seconds()
	if err != nil || read != *size {
		return fmt.Errorf("%d bytes of output, %w", read, err)
	}
	return print(map[string]any{"mb_per_s": float64(read) / 1e6 / took})
}

func readFrames(body io.Reader) (int, error) {
	reader := bufio.NewReaderSize(body, 256*1024)
	var head [5]byte
	total := 0
	for {
		if _, err := io.ReadFull(reader, head[:]); err != nil {
			return total, fmt.Errorf("no EXIT frame: %w", err)
		}
		length := int(binary.BigEndian.Uint32(head[1:]))
		if _, err := reader.Discard(length); err != nil {
			return total, err
		}
		switch head[0] {
		case 2:
			total += length
		case 5:
			return total, nil
		}
	}
}
