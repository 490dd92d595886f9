// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/charmbracelet/x/vt"
	"github.com/creack/pty"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/test/bench/table"
	"gpu-dra-driver/test/fleetserver"
)

// The size of the terminal.
const columns, lines = 140, 50

// The budgets of the live screen. The first one is for a machine of two cores that serves the fleet too.
const (
	mostPaint = 15 * time.Second
	mostKey   = 250 * time.Millisecond
	mostShare = 0.5
)

// addPlugin adds the pod of a node's plugin.
func addPlugin(s *fleetserver.Server, node string) {
	s.Add("pods", &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "gpu-dra-driver", Name: "plugin-" + node, Labels: map[string]string{
			"app.kubernetes.io/name": "gpu-dra-driver", "app.kubernetes.io/component": "kubelet-plugin",
		}},
		Spec: corev1.PodSpec{
			NodeName: node, HostPID: true,
			Volumes: []corev1.Volume{{Name: "registrar", VolumeSource: corev1.VolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: "/var/lib/kubelet/plugins_registry"},
			}}},
			Containers: []corev1.Container{{Name: "gpus", Image: "plugin", Ports: []corev1.ContainerPort{{Name: "metrics", ContainerPort: 8080}}}},
		},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
	})
}

// metrics returns the plugin's metrics about the GPUs of a board, as far as the screen shows them.
func metrics(board string) (string, error) {
	slices, err := slicetest.Node(board, "node", 0)
	if err != nil {
		return "", err
	}
	var out strings.Builder
	for i, metric := range []string{"utilization_ratio", "memory_used_bytes", "memory_total_bytes"} {
		fmt.Fprintf(&out, "# TYPE gpu_dra_device_%s gauge\n", metric)
		for _, s := range slices {
			for j, d := range s.Spec.Devices {
				if named, err := gpu.ParseName(d.Name); err != nil || named.Kind != gpu.KindGPU {
					continue
				}
				value := []float64{float64(j%8) / 8, float64(j+1) * (1 << 30), 80 << 30}[i]
				fmt.Fprintf(&out, "gpu_dra_device_%s{device=%q,gpu_uuid=\"GPU-%d\",model=\"H100\",node=\"node\",type=\"gpu\",uuid=\"GPU-%[3]d\"} %g\n",
					metric, d.Name, j, value)
			}
		}
	}
	return out.String(), nil
}

// serveMetrics answers requests to the pods of plugins. byPod has the metrics by the pod's name.
func serveMetrics(byPod map[string]string) func(http.ResponseWriter, *http.Request, string) {
	return func(w http.ResponseWriter, r *http.Request, pod string) {
		text, ok := byPod[pod]
		if !ok {
			http.NotFound(w, r)
			return
		}
		_, _ = io.WriteString(w, text) // The client may have disconnected.
	}
}

// screen is a program on a terminal.
type screen struct {
	program  *exec.Cmd
	terminal io.ReadWriteCloser
	changed  chan struct{}

	mu       sync.Mutex
	emulator *vt.Emulator
}

// watch measures `kubectl gpu top --watch`: the time to the first screen with GPUs, between two updates and after a key. It also
// measures the share of a core once the screen stands.
func watch(ctx context.Context, binary, kubeconfig string) (rows []table.Row, err error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	s := &screen{
		program: exec.CommandContext(ctx, binary, "top", "--watch", "--kubeconfig="+kubeconfig, "--request-timeout=5m"),
		changed: make(chan struct{}, 1), emulator: vt.NewEmulator(columns, lines),
	}
	s.program.Env = append(s.program.Environ(), "TERM=xterm-256color")
	began := time.Now()
	if s.terminal, err = pty.StartWithSize(s.program, &pty.Winsize{Rows: lines, Cols: columns}); err != nil {
		return nil, err
	}
	var running sync.WaitGroup
	running.Go(s.follow)
	running.Go(func() { _, _ = io.Copy(s.terminal, s.emulator) }) // Answers to the program's queries.
	defer func() {
		cancel()
		err = errors.Join(err, s.emulator.Close())
		_ = s.program.Wait() // It was killed, or has ended by a key.
		_ = s.terminal.Close()
		running.Wait()
	}()

	time0, err := s.await(ctx, updated, "")
	if err != nil {
		return nil, err
	}
	paint := time.Since(began)
	time1, err := s.await(ctx, updated, time0)
	if err != nil {
		return nil, err
	}
	cpu, from := s.cpu(), time.Now()
	if _, err := s.await(ctx, updated, time1); err != nil {
		return nil, err
	}
	update := time.Since(from)
	share := (s.cpu() - cpu).Seconds() / update.Seconds()
	from = time.Now()
	if _, err := io.WriteString(s.terminal, "u"); err != nil {
		return nil, err
	}
	if _, err := s.await(ctx, byUtilization, ""); err != nil {
		return nil, err
	}
	key := time.Since(from)
	_, err = io.WriteString(s.terminal, "q")
	seconds := func(d time.Duration) string { return fmt.Sprintf("%.1f s", d.Seconds()) }
	return []table.Row{
		table.Plain("first paint", seconds(paint), seconds(mostPaint), paint > mostPaint),
		table.Plain("update every", seconds(update), "-", false),
		table.Plain("CPU between updates, of a core", fmt.Sprintf("%.0f%%", 100*share), fmt.Sprintf("%.0f%%", 100*mostShare), share > mostShare),
		table.Plain("sorted after a key", fmt.Sprintf("%d ms", key.Milliseconds()), fmt.Sprintf("%d ms", mostKey.Milliseconds()), key > mostKey),
	}, err
}

var (
	updated       = regexp.MustCompile(`GPUs free.* at (\d\d:\d\d:\d\d)`)
	byUtilization = regexp.MustCompile(`by (utilization) `)
)

// follow reads the terminal to its end.
func (s *screen) follow() {
	data := make([]byte, 64<<10)
	for {
		n, err := s.terminal.Read(data)
		if err != nil {
			return
		}
		s.mu.Lock()
		_, _ = s.emulator.Write(data[:n]) // It keeps the screen in memory.
		s.mu.Unlock()
		select {
		case s.changed <- struct{}{}:
		default:
		}
	}
}

// await waits until the screen has a text other than the last one, and returns it.
func (s *screen) await(ctx context.Context, want *regexp.Regexp, last string) (string, error) {
	for {
		s.mu.Lock()
		text := s.emulator.String()
		s.mu.Unlock()
		if found := want.FindStringSubmatch(text); found != nil && found[1] != last {
			return found[1], nil
		}
		select {
		case <-s.changed:
		case <-ctx.Done():
			return "", fmt.Errorf("the screen lacks %s: %w\n%s", want, ctx.Err(), text)
		}
	}
}

// cpu returns the processor time of the program, in steps of 10 ms.
func (s *screen) cpu() time.Duration {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.program.Process.Pid))
	if err != nil {
		return 0
	}
	// The fields after the name, which can have blanks: user and system time are the 14th and 15th of all.
	_, rest, _ := strings.Cut(string(data), ") ")
	fields := strings.Fields(rest)
	ticks := 0
	for _, field := range fields[11:13] {
		n, _ := strconv.Atoi(field) // The kernel writes numbers.
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
