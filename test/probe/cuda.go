// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"gpu-dra-driver/sim/mps"
)

// cuda is the report of a CUDA process: the MPS daemon of its environment, its limits, and its allocations.
type cuda struct {
	MPS        bool    `json:"mps"`
	LimitBytes uint64  `json:"limitBytes,omitempty"`
	Threads    int     `json:"activeThreadPercentage,omitempty"`
	Device     string  `json:"device,omitempty"`
	Allocs     []alloc `json:"allocs,omitempty"`
	Error      string  `json:"error,omitempty"`
	// PipeWrite is the error of making a file in the daemon's pipe directory; "" means that it was made.
	PipeWrite string `json:"pipeWrite,omitempty"`
	// Lost is the reason of the broken connection, Reconnected means that there is another.
	Lost        string `json:"lost,omitempty"`
	Reconnected bool   `json:"reconnected,omitempty"`
}

type alloc struct {
	Bytes uint64 `json:"bytes"`
	OK    bool   `json:"ok"`
	Error string `json:"error,omitempty"`
}

type cudaView struct {
	view
	CUDA cuda `json:"cuda"`
	// Processes holds the reports of other processes of the same container.
	Processes []cuda `json:"processes,omitempty"`
}

// runCUDA is the verb `cuda`: it connects as CUDA does, allocates, and prints the result. With --hold it waits for a
// signal, and prints a line when it loses its device and another when it has it again.
func runCUDA(ctx context.Context, args []string, root string, stdout io.Writer) error {
	fs := flag.NewFlagSet("cuda", flag.ContinueOnError)
	amounts := fs.String("alloc", "", "amounts of memory to allocate in turn, as 10Gi,1Gi")
	load := fs.Int("load", 0, "percentage of the device's multiprocessors to keep busy")
	processes := fs.Int("processes", 1, "how many processes do the same")
	hold := fs.Bool("hold", false, "go on until SIGTERM")
	short := fs.Bool("short", false, "print no view of the container")
	if err := fs.Parse(args); err != nil || fs.NArg() > 0 || *load < 0 || *load > 100 {
		return errUsage
	}
	sizes, err := parse(*amounts)
	if err != nil {
		return err
	}
	// The other processes end with this one.
	ctx, end := context.WithCancel(ctx)
	var children sync.WaitGroup
	defer children.Wait()
	defer end()
	c, client := connect(ctx, root, sizes, *load)
	out := cudaView{CUDA: c}
	if !*short {
		out.view = look(ctx, root, os.Environ())
		var mu sync.Mutex
		var wg sync.WaitGroup
		for range *processes - 1 {
			wg.Go(func() {
				other := child(ctx, &children, *amounts, *load)
				mu.Lock()
				defer mu.Unlock()
				out.Processes = append(out.Processes, other)
			})
		}
		wg.Wait()
	}
	encode := json.NewEncoder(stdout)
	if *short {
		if err := encode.Encode(out.CUDA); err != nil {
			return err
		}
	} else if err := encode.Encode(out); err != nil {
		return fmt.Errorf("cannot print: %w", err)
	}
	for *hold && ctx.Err() == nil {
		if client == nil {
			<-ctx.Done()
			return nil
		}
		stop := context.AfterFunc(ctx, func() { _ = client.Close() })
		lost := client.Lost()
		stop()
		if ctx.Err() != nil {
			return nil
		}
		_ = encode.Encode(map[string]cuda{"cuda": {MPS: true, Lost: lost.Error()}})
		for client = nil; client == nil && ctx.Err() == nil; {
			if c, client = connect(ctx, root, sizes, *load); client == nil {
				select {
				case <-ctx.Done():
				case <-time.After(200 * time.Millisecond):
				}
			}
		}
		c.Reconnected = true
		_ = encode.Encode(map[string]cuda{"cuda": c})
	}
	if client != nil {
		return client.Close()
	}
	return nil
}

// parse parses amounts of memory.
func parse(amounts string) (sizes []uint64, err error) {
	if amounts == "" {
		return nil, nil
	}
	for amount := range strings.SplitSeq(amounts, ",") {
		q, err := resource.ParseQuantity(amount)
		if err != nil || q.Sign() <= 0 {
			return nil, fmt.Errorf("--alloc: %q is not an amount of memory, as 10Gi is", amount)
		}
		sizes = append(sizes, uint64(q.Value()))
	}
	return sizes, nil
}

// connect connects one process to its device. Without MPS in its environment there is no simulation.
func connect(ctx context.Context, root string, amounts []uint64, load int) (cuda, *mps.Client) {
	if os.Getenv("CUDA_MPS_PIPE_DIRECTORY") == "" {
		return cuda{}, nil
	}
	c := cuda{MPS: true}
	file := filepath.Join(root, os.Getenv("CUDA_MPS_PIPE_DIRECTORY"), fmt.Sprintf("probe-%d", os.Getpid()))
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		c.PipeWrite = err.Error()
	}
	client, err := mps.Connect(ctx, os.Environ(), root)
	if err != nil {
		c.Error = err.Error()
		return c, nil
	}
	c.LimitBytes, c.Threads, c.Device = client.LimitMiB<<20, client.Threads, client.UUID
	for _, amount := range amounts {
		a := alloc{Bytes: amount, OK: true}
		if err := client.Alloc(a.Bytes); err != nil {
			a.OK, a.Error = false, err.Error()
		}
		c.Allocs = append(c.Allocs, a)
	}
	if load > 0 {
		if err := client.Load(load); err != nil {
			c.Error = err.Error()
		}
	}
	return c, client
}

// child starts another process that does the same and ends with this one.
func child(ctx context.Context, children *sync.WaitGroup, amounts string, load int) cuda {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "cuda", "--short", "--hold", "--alloc", amounts, "--load", strconv.Itoa(load))
	pipe, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return cuda{MPS: true, Error: err.Error()}
	}
	var c cuda
	line, err := readLine(pipe)
	if err == nil {
		err = json.Unmarshal(line, &c)
	}
	if err != nil {
		c = cuda{MPS: true, Error: err.Error()}
	}
	children.Go(func() { _ = cmd.Wait() })
	return c
}

func readLine(r io.Reader) ([]byte, error) {
	var out bytes.Buffer
	one := make([]byte, 1)
	for {
		n, err := r.Read(one)
		if n > 0 {
			if one[0] == '\n' {
				return out.Bytes(), nil
			}
			out.WriteByte(one[0])
		}
		if err != nil {
			return out.Bytes(), err
		}
	}
}
