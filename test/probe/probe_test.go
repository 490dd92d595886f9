// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func write(t *testing.T, mode os.FileMode, contents string, elem ...string) {
	t.Helper()
	file := filepath.Join(elem...)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(contents), mode); err != nil {
		t.Fatal(err)
	}
}

func TestLook_Container_OneLineOfJSON(t *testing.T) {
	root := t.TempDir()
	write(t, 0o755, "#!/bin/sh\necho \"GPU 0: Test ($1)\"\n", root, "usr/bin/nvidia-smi")
	write(t, 0o644, "", root, "dev/nvidia-plain-file")
	write(t, 0o644, "{}", root, "var/run/kubernetes.io/dra-device-attributes/resourceclaims/c/gpu/d-metadata.json")
	t.Setenv("NVIDIA_VISIBLE_DEVICES", "void")
	var out bytes.Buffer
	if err := run(context.Background(), []string{"look"}, root, &out); err != nil {
		t.Fatal(err)
	}
	if n := bytes.Count(out.Bytes(), []byte("\n")); n != 1 {
		t.Fatalf("%d lines, want one:\n%s", n, out.String())
	}
	var v view
	if err := json.Unmarshal(out.Bytes(), &v); err != nil {
		t.Fatal(err)
	}
	if v.NvidiaSMI != "GPU 0: Test (-L)" || v.NvidiaSMIError != "" {
		t.Errorf("nvidia-smi: %q, %q", v.NvidiaSMI, v.NvidiaSMIError)
	}
	if v.Env["NVIDIA_VISIBLE_DEVICES"] != "void" {
		t.Errorf("env = %v", v.Env)
	}
	if diff := cmp.Diff(map[string]string{"resourceclaims/c/gpu/d-metadata.json": "{}"}, v.Metadata); diff != "" {
		t.Errorf("metadata (-want +got):\n%s", diff)
	}
	if len(v.Devices) != 0 {
		t.Errorf("a plain file is not a device: %v", v.Devices)
	}
	if !bytes.Contains(out.Bytes(), []byte(`"devices":[]`)) {
		t.Errorf("an empty list is printed as null: %s", out.String())
	}
}

func TestDriverEnv_Ranks_AreReported(t *testing.T) {
	got := driverEnv([]string{
		"LWS_WORKER_INDEX=1", "JOB_COMPLETION_INDEX=2", "NODE_RANK=3", "RANK=4", "PET_NNODES=5", "RANKS=6", "CUDA_VISIBLE_DEVICES=a=b", "JOB_COMPLETION_INDEX_2=4", "PATH=/bin",
		"MY_NCCL_DEBUG=1",
	})
	want := map[string]string{"LWS_WORKER_INDEX": "1", "JOB_COMPLETION_INDEX": "2", "NODE_RANK": "3", "RANK": "4", "PET_NNODES": "5", "CUDA_VISIBLE_DEVICES": "a=b"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestDevices_Nodes_TypesAndNumbers makes a node with major 195, as the simulator does. Without a driver, opening it
// returns ENXIO, which is not a refusal.
func TestDevices_Nodes_TypesAndNumbers(t *testing.T) {
	root := t.TempDir()
	for _, dir := range []string{"dev/nvidia-caps", "dev/other"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	node := func(name string, major, minor uint32) bool {
		err := unix.Mknod(filepath.Join(root, "dev", name), unix.S_IFCHR|0o666, int(unix.Mkdev(major, minor)))
		return err == nil
	}
	if !node("null", 1, 3) {
		// Unprivileged: the listing still works on the existing nodes.
		if got := devices(root); len(got) != 0 {
			t.Fatalf("devices = %v", got)
		}
		return
	}
	node("nvidia0", 1, 3) // the null device: it opens everywhere
	node("nvidia-caps/nvidia-cap1", 510, 1)
	node("other/nvidia9", 1, 3)
	got := devices(root)
	var paths []string
	for _, d := range got {
		paths = append(paths, d.Path)
	}
	if diff := cmp.Diff([]string{"/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia0"}, paths); diff != "" {
		t.Fatal(diff)
	}
	want := device{Path: "/dev/nvidia0", Type: "c", Major: 1, Minor: 3, Mode: got[1].Mode, Openable: true}
	if diff := cmp.Diff(want, got[1]); diff != "" {
		t.Error(diff)
	}
	if got[0].Major != 510 || got[0].Minor != 1 {
		t.Errorf("capability node = %+v", got[0])
	}
}

func TestDriverMounts_Mountinfo_OnlyDriverFiles(t *testing.T) {
	const info = `22 1 8:1 / / rw shared:1 - ext4 /dev/sda rw
30 22 8:1 /x/libcuda.so.580 /usr/lib/x86_64-linux-gnu/libcuda.so.580 ro,nosuid - ext4 /dev/sda rw
31 22 8:1 /x/smi /usr/bin/nvidia-smi ro - ext4 /dev/sda rw
32 22 8:1 /x/smi /usr/bin/nvidia-smi ro - ext4 /dev/sda rw
short line
`
	want := []string{"/usr/bin/nvidia-smi", "/usr/lib/x86_64-linux-gnu/libcuda.so.580"}
	if diff := cmp.Diff(want, driverMounts([]byte(info))); diff != "" {
		t.Error(diff)
	}
}

func TestRun_Verbs_TakenOrRefused(t *testing.T) {
	stopped, stop := context.WithCancel(context.Background())
	stop()
	for _, c := range []struct {
		name string
		args []string
		err  bool
	}{
		{"no verb looks", nil, false},
		{"hold ends with the signal", []string{"look", "--hold"}, false},
		{"sleep ends with the signal", []string{"sleep"}, false},
		{"an unknown verb is refused", []string{"peek"}, true},
		{"an unknown flag is refused", []string{"look", "--loop"}, true},
		{"sleep takes nothing", []string{"sleep", "5"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := run(stopped, c.args, t.TempDir(), &bytes.Buffer{})
			if (err != nil) != c.err {
				t.Errorf("error = %v", err)
			}
		})
	}
}

// TestRun_Hold_WaitsAfterPrinting checks that the held process prints before it waits for the signal.
func TestRun_Hold_WaitsAfterPrinting(t *testing.T) {
	ctx, stop := context.WithCancel(context.Background())
	waiting := make(chan struct{})
	ended := make(chan error, 1)
	var out bytes.Buffer
	go func() { ended <- run(watched{ctx, waiting}, []string{"look", "--hold"}, t.TempDir(), &out) }()
	select {
	case <-waiting:
	case err := <-ended:
		t.Fatalf("ended without a signal: %v", err)
	}
	if out.Len() == 0 {
		t.Error("waits before it has printed")
	}
	stop()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
}

// watched detects that a caller waits for its end.
type watched struct {
	context.Context
	waiting chan struct{}
}

func (w watched) Done() <-chan struct{} {
	close(w.waiting)
	return w.Context.Done()
}
