// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command kindhost runs a command on a machine with Docker, kind and an image of a kind node, although this machine has
// no registry. Debian packages have dockerd and mmdebstrap; everything else is built from Go modules.
//
//	kindhost build [--kubernetes V]              build kind, the node's programs and its image into the cache
//	kindhost run --dir DIR [--kubernetes V] -- CMD...
//
// The command and its dockerd have PID, mount, network and IPC namespaces of their own, without a way out of the
// network. So they see no other dockerd, change no rule of the machine's network, and end with kindhost, which then
// removes DIR and the cgroups.
package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"gpu-dra-driver/test/cluster/internal/cache"
	"gpu-dra-driver/test/cluster/internal/nodeimage"
	"gpu-dra-driver/test/cluster/internal/owner"
	"gpu-dra-driver/test/cluster/internal/recipe"
	"gpu-dra-driver/test/cluster/internal/spec"
)

// init locks the main thread: the children's parent-death signals are bound to the thread that starts them (see
// package owner).
func init() { runtime.LockOSThread() }

// hostCommand is the hidden command of the first process in the namespaces.
const hostCommand = "__host"

func main() {
	err := run(os.Args[1:])
	var code exitCode
	switch {
	case err == nil, errors.Is(err, flag.ErrHelp):
	case errors.As(err, &code):
		os.Exit(int(code))
	default:
		fmt.Fprintln(os.Stderr, "kindhost:", err)
		os.Exit(1)
	}
}

// exitCode is a program's exit code. The program has printed its error.
type exitCode int

func (c exitCode) Error() string { return fmt.Sprintf("exit code %d", int(c)) }

// code turns a command's failure into its exit code.
func code(err error) error {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exitCode(max(exit.ExitCode(), 1))
	}
	return err
}

func run(args []string) error {
	verb := ""
	if len(args) > 0 {
		verb, args = args[0], args[1:]
	}
	switch {
	case verb == nodeimage.XtablesCommand && len(args) == 4:
		return nodeimage.WriteKubeProxy(args[0], args[1], args[2], args[3])
	case verb == owner.WatchCommand && len(args) == 1:
		return watch(args[0])
	case verb == hostCommand && len(args) > 1:
		return host(args[0], args[1:])
	}
	flags := flag.NewFlagSet("kindhost "+verb, flag.ContinueOnError)
	version := flags.String("kubernetes", recipe.DefaultKubernetes, "the Kubernetes version")
	dir := flags.String("dir", "", "a directory that kindhost makes and removes")
	if err := flags.Parse(args); err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	switch verb {
	case "build":
		_, err := build(ctx, *version)
		return err
	case "run":
		if *dir == "" || flags.NArg() == 0 {
			return errors.New("run needs a directory and a command: kindhost run --dir DIR -- CMD")
		}
		return runWith(ctx, *dir, *version, flags.Args())
	}
	return fmt.Errorf("no command %q: say build or run", verb)
}

func build(ctx context.Context, version string) (nodeimage.Image, error) {
	dir, err := cache.Dir()
	if err != nil {
		return nodeimage.Image{}, err
	}
	return nodeimage.Build(ctx, cache.Cache{Dir: dir, Progress: os.Stderr}, version)
}

// grace is the time between a signal and the end of the namespaces.
const grace = 10 * time.Second

func runWith(ctx context.Context, dir, version string, command []string) (err error) {
	dir, err = filepath.Abs(dir)
	if err != nil {
		return err
	}
	for _, program := range []string{"dockerd", "docker", "runc", "iptables", "mmdebstrap"} {
		if _, err := exec.LookPath(program); err != nil {
			return fmt.Errorf("%w: install Debian's docker.io, iptables and mmdebstrap", err)
		}
	}
	began := time.Now()
	img, err := build(ctx, version)
	if err != nil {
		return err
	}
	step(began, "kind, the programs of the node and its image are built")
	if err := os.Mkdir(dir, 0o700); err != nil {
		return fmt.Errorf("make a directory of its own for Docker: %w", err)
	}
	id := make([]byte, 4)
	if _, err := rand.Read(id); err != nil {
		return err
	}
	s := spec.Spec{ID: hex.EncodeToString(id), Dir: dir, Kubernetes: version}
	if err := errors.Join(s.Save(), saveTunables(dir), prepare(s, img)); err != nil {
		return errors.Join(err, os.RemoveAll(dir))
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	lifeR, lifeW, err := os.Pipe()
	if err != nil {
		return err
	}
	watcher := exec.Command(self, owner.WatchCommand, dir)
	watcher.Stdin, watcher.Stderr = lifeR, os.Stderr
	watcher.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := watcher.Start(); err != nil {
		return errors.Join(fmt.Errorf("start the watcher: %w", err), os.RemoveAll(dir))
	}
	lifeR.Close()
	defer func() {
		lifeW.Close()
		err = errors.Join(err, watcher.Wait())
	}()

	cmd := exec.CommandContext(ctx, self, append([]string{hostCommand, dir}, command...)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.Env = environment(s, img)
	cmd.ExtraFiles = []*os.File{lifeW}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		// A group of its own: a terminal's Ctrl-C is for this process, which passes it on.
		Setpgid: true, Pdeathsig: syscall.SIGKILL,
		Cloneflags: syscall.CLONE_NEWPID | syscall.CLONE_NEWNS | syscall.CLONE_NEWNET | syscall.CLONE_NEWIPC,
	}
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = grace + time.Second
	return code(cmd.Run())
}

func step(began time.Time, what string) {
	fmt.Fprintf(os.Stderr, "%6.1fs  %s\n", time.Since(began).Seconds(), what)
}

// prepare fills the directory: links of the programs for the command's PATH.
func prepare(s spec.Spec, img nodeimage.Image) error {
	if err := os.Mkdir(s.Path("bin"), 0o755); err != nil {
		return err
	}
	docker := "/usr/bin/docker" // The one of the package goes with its dockerd.
	if _, err := os.Stat(docker); err != nil {
		if docker, err = exec.LookPath("docker"); err != nil {
			return err
		}
	}
	links := map[string]string{"docker": docker, archive: img.Archive}
	for _, name := range []string{"kind", "kubectl", recipe.RunCap} {
		links[name] = img.Programs[name]
	}
	for name, target := range links {
		if err := os.Symlink(target, s.Path("bin", name)); err != nil {
			return err
		}
	}
	return nil
}

// archive is the name of the link to the node image.
const archive = "node"

// environment returns the command's variables: Docker, kind and kubectl find the cluster and no other one.
func environment(s spec.Spec, img nodeimage.Image) []string {
	return append(os.Environ(),
		"PATH="+s.Path("bin")+":"+os.Getenv("PATH"), "DOCKER_HOST=unix://"+s.Path("docker.sock"), "DOCKER_CONFIG="+s.Path("docker"),
		"DOCKER_CONTEXT=", "KUBECONFIG="+s.Kubeconfig(), "KIND_NODE_IMAGE="+img.Reference, "KIND_EXPERIMENTAL_PROVIDER=docker")
}
