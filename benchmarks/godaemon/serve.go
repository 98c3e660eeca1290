package main

import (
	"bytes"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

const frames = "application/vnd.sandman.frames"

// serve listens where the daemon would, told by the same variables.
func serve([]string) error {
	listener, err := net.Listen("tcp", ":"+os.Getenv("SANDMAN_PORT"))
	if err != nil {
		return err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /v1/info", withToken(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "{}") }))
	mux.HandleFunc("POST /v1/exec", withToken(handleExec))
	mux.HandleFunc("PUT /v1/files", withToken(handlePut))
	return http.Serve(listener, mux)
}

func withToken(next http.HandlerFunc) http.HandlerFunc {
	wanted := os.Getenv("SANDMAN_TOKEN_SHA256")
	return func(w http.ResponseWriter, r *http.Request) {
		digest := sha256.Sum256([]byte(strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")))
		if subtle.ConstantTimeCompare([]byte(hex.EncodeToString(digest[:])), []byte(wanted)) != 1 {
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		next(w, r)
	}
}

type result struct {
	ExitCode    int     `json:"exit_code"`
	Stdout      string  `json:"stdout"`
	Stderr      string  `json:"stderr"`
	StdoutBytes int     `json:"stdout_bytes"`
	StderrBytes int     `json:"stderr_bytes"`
	WallS       float64 `json:"wall_s"`
	CPUS        float64 `json:"cpu_s"`
	PeakMemory  int64   `json:"peak_memory_bytes"`
}

func handleExec(w http.ResponseWriter, r *http.Request) {
	var spec struct {
		Argv []string `json:"argv"`
	}
	if err := json.NewDecoder(r.Body).Decode(&spec); err != nil || len(spec.Argv) == 0 {
		http.Error(w, "argv", http.StatusBadRequest)
		return
	}
	command := exec.CommandContext(r.Context(), spec.Argv[0], spec.Argv[1:]...)
	command.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	command.Env = append(os.Environ(), "SANDMAN_EXEC=x")
	if strings.Contains(r.Header.Get("Accept"), frames) {
		w.Header().Set("Content-Type", frames)
		writer := &frameWriter{w: w}
		command.Stdout, command.Stderr = writer.stream(2), writer.stream(3)
		started := time.Now()
		finished := finish(command, command.Run(), started)
		document, _ := json.Marshal(finished)
		writer.write(5, document)
		return
	}
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	started := time.Now()
	finished := finish(command, command.Run(), started)
	finished.Stdout, finished.Stderr = stdout.String(), stderr.String()
	finished.StdoutBytes, finished.StderrBytes = stdout.Len(), stderr.Len()
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(finished)
}

func finish(command *exec.Cmd, err error, started time.Time) result {
	found := result{WallS: time.Since(started).Seconds(), ExitCode: 127}
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		return found
	}
	state := command.ProcessState
	usage := state.SysUsage().(*syscall.Rusage)
	found.ExitCode, found.PeakMemory = state.ExitCode(), usage.Maxrss*1024
	found.CPUS = (state.UserTime() + state.SystemTime()).Seconds()
	return found
}

// frameWriter writes `type u8, length u32, payload`, as the daemon does, and flushes each.
type frameWriter struct {
	lock sync.Mutex
	w    http.ResponseWriter
}

type stream struct {
	frames *frameWriter
	kind   byte
}

func (f *frameWriter) stream(kind byte) io.Writer { return stream{f, kind} }

func (s stream) Write(data []byte) (int, error) { return s.frames.write(s.kind, data) }

func (f *frameWriter) write(kind byte, data []byte) (int, error) {
	f.lock.Lock()
	defer f.lock.Unlock()
	var head [5]byte
	head[0] = kind
	binary.BigEndian.PutUint32(head[1:], uint32(len(data)))
	if _, err := f.w.Write(head[:]); err != nil {
		return 0, err
	}
	n, err := f.w.Write(data)
	if flusher, ok := f.w.(http.Flusher); ok {
		flusher.Flush()
	}
	return n, err
}

// handlePut writes beside the file, then renames, and answers with the checksum: as the daemon does.
func handlePut(w http.ResponseWriter, r *http.Request) {
	path := r.URL.Query().Get("path")
	file, err := os.CreateTemp(filepath.Dir(path), ".put-")
	if err != nil {
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	}
	defer os.Remove(file.Name())
	defer file.Close()
	digest := sha256.New()
	size, err := io.CopyBuffer(io.MultiWriter(file, digest), r.Body, make([]byte, 64*1024))
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"path": path, "size": size, "sha256": hex.EncodeToString(digest.Sum(nil))})
}
