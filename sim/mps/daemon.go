// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"gpu-dra-driver/sim/engine"
)

// maxClients is the largest number of clients of a server, on a whole GPU.
const maxClients = 48

// processName is the name of a client in the engine. A daemon uses it to find the clients of an earlier one.
const processName = "mps-client"

// daemon is a control daemon with its server; it has at most one.
type daemon struct {
	engine *engine.Engine
	// device is a UUID or an index.
	device string
	// program is the file that runs as a server; empty: servers are not processes of their own.
	program string
	// shm is /dev/shm; root is the machine's directory.
	shm, root string
	anyUser   bool
	log       *log.Logger
	quit      chan struct{}
	once      sync.Once

	mu sync.Mutex
	// Limits of future servers; 0: no limit.
	defaultMiB     uint64
	defaultThreads int
	// server is nil while there is none.
	server  *server
	clients map[*client]bool
	freed   chan struct{} // closed when the server has no client any more
	made    int
	hook    hook
}

// client is a process that computes.
type client struct {
	pid      uint32
	uid      uint32
	limitMiB uint64
	usedMiB  uint64
	// load is in percent of the device, and at most threads.
	load, threads int
	shm           string
	// end closes its connection, and so ends its context.
	end func() error
}

func newDaemon(e *engine.Engine, root, device, shm string, anyUser bool, l *log.Logger) *daemon {
	return &daemon{
		engine: e, root: root, device: device, shm: shm, anyUser: anyUser, log: l, quit: make(chan struct{}),
		defaultThreads: 100, clients: map[*client]bool{}, freed: make(chan struct{}),
	}
}

func (d *daemon) stop() { d.once.Do(func() { close(d.quit) }) }

// serve answers one connection.
func (d *daemon) serve(conn *net.UnixConn, privileged bool) {
	defer func() { _ = conn.Close() }()
	d.log.Print("Accepting connection...")
	read := bufio.NewReader(conn)
	answer := func(r response) { _ = json.NewEncoder(conn).Encode(r) }
	cred, err := peer(conn)
	if err != nil {
		answer(response{Error: err.Error()})
		return
	}
	var c *client
	for {
		line, err := read.ReadBytes('\n')
		if err != nil {
			break
		}
		var r request
		if err := json.Unmarshal(line, &r); err != nil {
			answer(response{Error: "not readable"})
			break
		}
		switch {
		case r.Command != "":
			out, err := d.command(r.Command, cred.Uid, privileged)
			answer(response{Output: out, Error: text(err)})
		case r.Hello != nil && c == nil:
			info, made, err := d.admit(*r.Hello, cred, conn, read)
			c = made
			answer(response{Info: info, Error: text(err)})
		case r.Alloc > 0 && c != nil:
			answer(response{Error: text(d.alloc(c, r.Alloc))})
		case r.Load > 0 && c != nil:
			answer(response{Error: text(d.load(c, r.Load))})
		case r.Fault && c != nil:
			d.mu.Lock()
			d.fail()
			d.mu.Unlock()
			answer(response{Error: errFault.Error()})
		default:
			answer(response{Error: "unexpected"})
		}
	}
	if c != nil {
		d.leave(c)
	}
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

func peer(conn *net.UnixConn) (*unix.Ucred, error) {
	raw, err := conn.SyscallConn()
	if err != nil {
		return nil, err
	}
	var cred *unix.Ucred
	var credErr error
	err = raw.Control(func(fd uintptr) { cred, credErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	return cred, errors.Join(err, credErr)
}

// errFault ends the work of each client of a server after a fault of one of them.
var errFault = errors.New("an illegal memory access was encountered")

// fail puts the server into the state FAULT until all its clients are gone. The caller holds d.mu.
func (d *daemon) fail() {
	if d.server != nil && len(d.clients) > 0 {
		if word, _ := fault(d.root, d.device); word != "quiet" {
			d.log.Print("Server is handling a fatal GPU error.")
		}
		d.server.fault = true
	}
}

// admit gives a process a context, once the server belongs to its user.
func (d *daemon) admit(h hello, cred *unix.Ucred, conn *net.UnixConn, read *bufio.Reader) (*Info, *client, error) {
	user := cred.Uid
	if d.anyUser {
		user = 0
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.waitTurn(user, cred, conn, read); err != nil {
		return nil, nil, err
	}
	if d.server.fault {
		return nil, nil, errors.New("MPS server is not ready to accept new MPS client requests")
	}
	if len(d.clients) >= maxClients {
		return nil, nil, errors.New("too many MPS clients")
	}
	s, err := d.engine.State()
	if err != nil {
		return nil, nil, err
	}
	g, _, totalMiB, err := find(s, d.device)
	if err != nil {
		return nil, nil, err
	}
	d.made++
	c := &client{pid: uint32(cred.Pid), uid: cred.Uid, limitMiB: least(totalMiB, d.server.mib, clientLimit(h.Memory)), end: conn.Close}
	if cred.Pid == 0 {
		c.pid = d.foreignPID(g) // Its process is in another PID namespace.
	}
	threads := d.server.threads
	if n := number(h.Threads); n > 0 {
		threads = min(threads, n)
	}
	c.threads = threads
	// The daemon's PID separates daemons that share a /dev/shm.
	info := &Info{LimitMiB: c.limitMiB, Threads: threads, Server: d.server.pid, UUID: d.device, Minor: g.Minor}
	if namedShm(s.Profile.Driver.Version) {
		info.Shm = shmPrefix(user, os.Getpid()) + fmt.Sprint(d.made)
		c.shm = filepath.Join(d.shm, info.Shm)
		if err := os.WriteFile(c.shm, make([]byte, 4096), 0o666); err != nil {
			_ = os.Remove(c.shm) // If it is full, an empty file exists.
			return nil, nil, fmt.Errorf("make shared memory: %w", err)
		}
	}
	d.clients[c] = true
	if err := d.account(c); err != nil {
		delete(d.clients, c)
		_ = os.Remove(c.shm)
		return nil, nil, err
	}
	return info, c, nil
}

// waitTurn waits until a server of the user serves, and starts it if there is none. The caller holds d.mu; waiting
// releases it.
func (d *daemon) waitTurn(user uint32, cred *unix.Ucred, conn *net.UnixConn, read *bufio.Reader) error {
	var gone <-chan struct{}
	for {
		s := d.server
		if s != nil && !s.inStart() && (s.user != user || s.closing) && len(d.clients) == 0 {
			d.endServer()
			s = nil
		}
		if s == nil {
			d.log.Printf("NEW CLIENT %d from user %d: There is no server yet", cred.Pid, user)
			if err := d.start(user); err != nil {
				return err
			}
			s = d.server
		}
		var wait <-chan struct{}
		switch {
		case s.inStart():
			wait = s.ready
			d.log.Printf("NEW CLIENT %d from user %d: Server is not ready, push client to pending list", cred.Pid, user)
		case s.user != user || s.closing:
			wait = d.freed
			d.log.Printf("NEW CLIENT %d from user %d: Server is for user %d, push client to pending list", cred.Pid, cred.Uid, s.user)
		default:
			d.log.Printf("NEW CLIENT %d from user %d: Server already exists", cred.Pid, user)
			return nil
		}
		if gone == nil {
			var stop func()
			gone, stop = broken(conn, read)
			defer stop()
		}
		err := error(nil)
		d.mu.Unlock()
		select {
		case <-wait:
		case <-gone:
			err = errors.New("the client is gone")
		case <-d.quit:
			err = errors.New("the MPS server is shutting down")
		}
		d.mu.Lock()
		if err != nil {
			return err
		}
	}
}

// broken detects that a waiting client has disconnected. It reads ahead until stop.
func broken(conn *net.UnixConn, read *bufio.Reader) (gone <-chan struct{}, stop func()) {
	broke, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		if _, err := read.Peek(1); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			close(broke)
		}
	}()
	return broke, func() {
		_ = conn.SetReadDeadline(time.Now())
		<-done
		_ = conn.SetReadDeadline(time.Time{})
	}
}

// foreignPID makes up a PID for a process in another PID namespace.
func (d *daemon) foreignPID(g *engine.GPU) uint32 {
	pid := 1<<22 + uint32(os.Getpid())<<8 + uint32(d.made)
	for slices.ContainsFunc(g.Processes, func(p engine.Process) bool { return p.PID == pid }) {
		pid++
	}
	return pid
}

// namedShm reports whether a driver's MPS has files in /dev/shm. Driver 580 has anonymous shared memory.
func namedShm(driver string) bool {
	major, _, _ := strings.Cut(driver, ".")
	return number(major) < 580
}

// shmPrefix is the prefix of a daemon's shared memory files.
func shmPrefix(user uint32, pid int) string { return fmt.Sprintf("cuda.shm.%x.%x.", user, pid) }

// leave ends a client's context. The server stays until another user's client needs it.
func (d *daemon) leave(c *client) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.clients, c)
	_ = os.Remove(c.shm)
	if err := d.account(c); err != nil {
		d.log.Printf("client %d: %v", c.pid, err)
	}
	if len(d.clients) == 0 {
		if d.server != nil {
			d.server.fault = false
		}
		if d.server != nil && d.server.closing {
			d.endServer()
		}
		close(d.freed)
		d.freed = make(chan struct{})
	}
}

// shut ends the server: at once with the contexts of its clients, or after they have ended. The caller holds d.mu.
func (d *daemon) shut(force bool) {
	if d.server == nil {
		return
	}
	d.server.closing = true
	for c := range d.clients {
		if force {
			_ = c.end()
		}
	}
	if force || len(d.clients) == 0 {
		d.endServer()
	}
}

// alloc gives a client memory, within its limit and the device's memory.
func (d *daemon) alloc(c *client, bytes uint64) error {
	const most = 1 << 50
	if bytes > most {
		return errors.New("out of memory")
	}
	mib := (bytes + 1<<20 - 1) >> 20
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.server != nil && d.server.fault {
		return errFault
	}
	if c.usedMiB+mib > c.limitMiB {
		return errors.New("out of memory")
	}
	c.usedMiB += mib
	if err := d.account(c); err != nil {
		c.usedMiB -= mib
		return errors.New("out of memory")
	}
	return nil
}

// load makes a client compute, within its limit of threads.
func (d *daemon) load(c *client, percent int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.server != nil && d.server.fault {
		return errFault
	}
	c.load = min(percent, c.threads)
	return d.account(c)
}

// account updates the memory and load of a client's process, over all its connections, in the machine's state, or removes it.
func (d *daemon) account(c *client) error {
	held, load, gone := uint64(0), 0, true
	for o := range d.clients {
		if o.pid == c.pid {
			held, load, gone = held+o.usedMiB, min(load+o.load, 100), false
		}
	}
	return d.engine.Update(func(s *engine.State) error {
		g, place, totalMiB, err := find(s, d.device)
		if err != nil {
			return err
		}
		if gone {
			return s.RemoveProcess(g, c.pid)
		}
		if place != nil {
			used := uint64(0)
			for _, p := range g.Processes {
				if p.Place != nil && *p.Place == *place && p.PID != c.pid {
					used += p.MemoryMiB
				}
			}
			if used+held > totalMiB {
				return errors.New("out of memory")
			}
		}
		return s.AddProcess(g, engine.Process{
			PID: c.pid, Name: processName, MemoryMiB: held, Load: load, Place: place, Cgroup: engine.CgroupOf("/proc", "/sys/fs/cgroup", c.pid),
		})
	})
}

// forget removes the processes of this device's clients, at start and end.
func (d *daemon) forget() error {
	return d.engine.Update(func(s *engine.State) error {
		g, place, _, err := find(s, d.device)
		if err != nil {
			return nil // The device is gone, with its processes.
		}
		kept := g.Processes[:0]
		for _, p := range g.Processes {
			same := (p.Place == nil) == (place == nil) && (place == nil || *p.Place == *place)
			if p.Name != processName || !same {
				kept = append(kept, p)
			}
		}
		g.Processes = kept
		return nil
	})
}

// find returns the GPU of a UUID or index, its place for a MIG device, and its memory.
func find(s *engine.State, device string) (g *engine.GPU, place *engine.Place, totalMiB uint64, err error) {
	if s.DriverLoaded {
		for i := range s.GPUs {
			g := &s.GPUs[i]
			if g.OffBus || g.Lost {
				continue
			}
			if g.UUID == device || fmt.Sprint(i) == device {
				return g, nil, s.Profile.Board.MemoryMiB - s.Profile.Board.ReservedMiB, nil
			}
			for _, gi := range g.Instances {
				for _, ci := range gi.Computes {
					if ci.UUID != device {
						continue
					}
					for _, p := range s.Profile.Board.MIG.GPUInstances {
						if p.ID == gi.ProfileID {
							totalMiB = p.MemoryMiB
						}
					}
					return g, &engine.Place{GPUInstance: gi.ID, ComputeInstance: ci.ID}, totalMiB, nil
				}
			}
		}
	}
	return nil, nil, 0, fmt.Errorf("no CUDA-capable device is detected: %s", device)
}

// least returns the smallest limit; 0 means no limit.
func least(n uint64, limits ...uint64) uint64 {
	for _, l := range limits {
		if l > 0 {
			n = min(n, l)
		}
	}
	return n
}

// clientLimit parses "0=10240M" for the only device.
func clientLimit(s string) uint64 {
	for part := range strings.SplitSeq(s, ",") {
		if index, value, ok := strings.Cut(strings.TrimSpace(part), "="); ok && index == "0" {
			return mebibytes(value)
		}
	}
	return 0
}
