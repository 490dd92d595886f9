// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"encoding/json"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"tags.cncf.io/container-device-interface/specs-go"

	"gpu-dra-driver/sim/driverroot"
	"gpu-dra-driver/sim/simtest"
)

// built builds a command of tools/toolkit. It takes seconds, so the go command's cache is enough.
func built(t *testing.T, command string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), filepath.Base(command))
	build := exec.Command("go", "-C", "../../tools/toolkit", "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", path, command)
	build.Env = append(build.Environ(), "CGO_ENABLED=1") // It loads NVML.
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building %s: %v\n%s", command, err, out)
	}
	return path
}

// generated returns the device nodes of each device in the specification that nvidia-ctk makes.
func generated(t *testing.T, m *simtest.DriverRoot) map[string][]string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "nvidia.json")
	run(t, m, "nvidia-ctk", "cdi", "generate", "--mode=nvml", "--driver-root="+m.Path, "--device-name-strategy=index",
		"--nvidia-cdi-hook-path=/usr/bin/nvidia-cdi-hook", "--format=json", "--output="+file)
	var spec specs.Spec
	if err := json.Unmarshal(read(t, file), &spec); err != nil {
		t.Fatal(err)
	}
	out := map[string][]string{}
	for _, d := range spec.Devices {
		for _, n := range d.ContainerEdits.DeviceNodes {
			out[d.Name] = append(out[d.Name], n.Path)
		}
		slices.Sort(out[d.Name])
	}
	return out
}

// TestCDI_SimulatedMachine_ToolkitFindsGPUsAndPartitions runs NVIDIA's generator of CDI specifications on two GPUs. The
// second one has two partitions, which NVIDIA's partition editor makes.
func TestCDI_SimulatedMachine_ToolkitFindsGPUsAndPartitions(t *testing.T) {
	paths["nvidia-ctk"] = built(t, "github.com/NVIDIA/nvidia-container-toolkit/cmd/nvidia-ctk")
	m := simtest.Root(t, "hgx-h100", func(o *driverroot.Options) { o.GPUs = 2 })
	whole := map[string][]string{"0": {"/dev/nvidia0"}, "1": {"/dev/nvidia1"}, "all": {"/dev/nvidia0", "/dev/nvidia1"}}
	if diff := cmp.Diff(whole, generated(t, m)); diff != "" {
		t.Errorf("whole GPUs (-want +got)\n%s", diff)
	}
	const layout = "version: v1\nmig-configs: {these: [{devices: [0], mig-enabled: false}, " +
		"{devices: [1], mig-enabled: true, mig-devices: {1g.10gb: 1, 3g.40gb: 1}}]}\n"
	run(t, m, "nvidia-mig-parted", "apply", "--config-file", write(t, layout), "--selected-config", "these")
	got := generated(t, m)
	if names := slices.Sorted(maps.Keys(got)); !slices.Equal(names, []string{"0", "1:0", "1:1", "all"}) {
		t.Fatalf("the devices are %v", names)
	}
	seen := map[string]bool{}
	for _, name := range []string{"1:0", "1:1"} {
		caps := 0
		for _, path := range got[name] {
			switch {
			case path == "/dev/nvidia1":
			case strings.HasPrefix(path, "/dev/nvidia-caps/nvidia-cap") && !seen[path]:
				seen[path] = true
				caps++
			default:
				t.Errorf("%s has %s", name, path)
			}
		}
		if caps != 2 || len(got[name]) != 3 {
			t.Errorf("%s has the nodes %v, want its GPU and two capabilities of its own", name, got[name])
		}
	}
}
