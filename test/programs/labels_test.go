// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package programs

import (
	"cmp"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gpu-dra-driver/internal/testing/slicetest"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/cluster/nodelabels"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/gpu/inventory"
	"gpu-dra-driver/sim/driverroot"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/nvmlfake"
	"gpu-dra-driver/sim/profiles"
	"gpu-dra-driver/sim/simtest"
)

// theirs returns the labels that NVIDIA's feature discovery writes.
func theirs(t *testing.T, m *simtest.DriverRoot, strategy, settings string) map[string]string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "labels")
	run(t, m, "gpu-feature-discovery", "--oneshot", "--no-timestamp", "--use-node-feature-api=false", "--output-file", file,
		"--device-discovery-strategy", "nvml", "--mig-strategy", strategy, "--config-file", write(t, settings))
	labels := map[string]string{}
	for line := range strings.Lines(string(read(t, file))) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), "=")
		labels[key] = value
	}
	return labels
}

func write(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "file.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// ours returns the labels that the controller writes for what the plugin publishes.
func ours(t *testing.T, m *simtest.DriverRoot, settings string) map[string]string {
	t.Helper()
	parsed, _, err := sharing.Parse([]byte(settings))
	if err != nil {
		t.Fatal(err)
	}
	snapshot, err := inventory.New(inventory.Options{
		Library: nvmlfake.New(m.Engine), ProcRoot: m.ProcRoot, SysRoot: m.SysRoot, DevRoot: m.Path,
	}).Scan(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	shapes, all := &pool.Shapes{}, []*pool.Slice{}
	for _, s := range slicetest.Slices(snapshot, "node-1", parsed) {
		one := shapes.Trim(s)
		all = append(all, &one)
	}
	labels := nodelabels.Of(pool.Of(all), slicetest.Driver)
	maps.DeleteFunc(labels, func(key, _ string) bool { return strings.HasPrefix(key, slicetest.Driver+"/") })
	return labels
}

// differences are the reasons why a label, or all labels with a prefix that ends with "*", differ.
type differences map[string]string

func (d differences) allow(label string) bool {
	return slices.ContainsFunc(slices.Collect(maps.Keys(d)), func(key string) bool {
		prefix, all := strings.CutSuffix(key, "*")
		return key == label || all && strings.HasPrefix(label, prefix)
	})
}

// always are the differences on every node.
var always = differences{"nvidia.com/gpu.present": "the GPU operator writes it, and pods select nodes by it"}

func compare(t *testing.T, theirs, ours map[string]string, allowed differences) {
	t.Helper()
	reasons := maps.Clone(always)
	maps.Copy(reasons, allowed)
	seen := map[string]bool{}
	for _, label := range slices.Sorted(maps.Keys(merged(theirs, ours))) {
		a, has := theirs[label]
		b, have := ours[label]
		switch {
		case has == have && a == b:
		case reasons.allow(label):
			seen[label] = true
		default:
			t.Errorf("%s: feature discovery has %q (%t), the driver %q (%t)", label, a, has, b, have)
		}
	}
	for key := range reasons {
		if !slices.ContainsFunc(slices.Collect(maps.Keys(seen)), differences{key: ""}.allow) {
			t.Errorf("%s does not differ", key)
		}
	}
}

func merged(a, b map[string]string) map[string]string {
	out := maps.Clone(a)
	maps.Copy(out, b)
	return out
}

// TestLabels_Node_AsFeatureDiscovery compares all labels on every board, with administrators' partitions, which NVIDIA's
// partition editor makes, and with shares.
func TestLabels_Node_AsFeatureDiscovery(t *testing.T) {
	const (
		plain   = "version: v1\n"
		oneSort = "{devices: all, mig-enabled: true, mig-devices: {1g.10gb: 7}}"
		several = "{devices: [0], mig-enabled: true, mig-devices: {1g.10gb+me: 1, 2g.20gb: 1, 3g.40gb: 1}}, {devices: [1], mig-enabled: true, " +
			"mig-devices: {7g.80gb: 1}}, {devices: [2], mig-enabled: true, mig-devices: {}}, {devices: [3], mig-enabled: false}"
	)
	replicas := func(strategy, resource, more string) string {
		return plain + "sharing: {" + strategy + ": {" + more + "resources: [{name: " + resource + ", replicas: 4}]}}\n"
	}
	noStrategy := differences{
		"nvidia.com/mig.strategy": "partitions are devices of their own, as with the strategy mixed", "nvidia.com/mig-*": "as mig.strategy",
	}
	type layout struct {
		board, partitions, strategy, settings string
		differ                                differences
	}
	cases := map[string]layout{
		"a fabric in MIG mode": {board: "gb200-tray", partitions: "{devices: all, mig-enabled: true, mig-devices: {}}", strategy: "mixed", differ: differences{
			"nvidia.com/gpu.clique": "partitions cannot use NVLink",
		}},
		"all GPUs partitioned":  {board: "hgx-h100", partitions: oneSort, strategy: "mixed"},
		"some GPUs partitioned": {board: "hgx-h100", partitions: several, strategy: "mixed"},
		"strategy none":         {board: "hgx-h100", partitions: oneSort, strategy: "none", differ: noStrategy},
		"strategy single": {board: "hgx-h100", partitions: oneSort, strategy: "single", differ: differences{
			"nvidia.com/mig.strategy": "partitions are devices of their own, as with the strategy mixed", "nvidia.com/mig-*": "as mig.strategy",
			"nvidia.com/gpu.product": "as mig.strategy", "nvidia.com/gpu.count": "as mig.strategy", "nvidia.com/gpu.replicas": "as mig.strategy",
			"nvidia.com/gpu.memory": "as mig.strategy", "nvidia.com/gpu.multiprocessors": "as mig.strategy",
			"nvidia.com/gpu.slices.*": "as mig.strategy", "nvidia.com/gpu.engines.*": "as mig.strategy",
		}},
		"time slices":                       {board: "l40s-4", strategy: "none", settings: replicas("timeSlicing", "nvidia.com/gpu", "")},
		"time slices, renamed":              {board: "l40s-4", strategy: "none", settings: replicas("timeSlicing", "nvidia.com/gpu", "renameByDefault: true, ")},
		"MPS":                               {board: "l40s-4", strategy: "none", settings: replicas("mps", "nvidia.com/gpu", "")},
		"time slices of partitions":         {board: "hgx-h100", partitions: several, strategy: "mixed", settings: replicas("timeSlicing", "nvidia.com/mig-2g.20gb", "")},
		"time slices of GPUs in MIG mode":   {board: "hgx-h100", partitions: oneSort, strategy: "mixed", settings: replicas("timeSlicing", "nvidia.com/gpu", "")},
		"time slices of the GPUs left":      {board: "hgx-h100", partitions: several, strategy: "mixed", settings: replicas("timeSlicing", "nvidia.com/gpu", "")},
		"time slices of renamed partitions": {board: "hgx-h100", partitions: oneSort, strategy: "mixed", settings: replicas("timeSlicing", "nvidia.com/mig-1g.10gb", "renameByDefault: true, ")},
	}
	for _, board := range profiles.Names() {
		p, err := profiles.Load(board)
		if err != nil {
			t.Fatal(err)
		}
		strategy := "none"
		if p.Board.MIGCapable {
			strategy = "mixed"
		}
		cases[board] = layout{board: board, strategy: strategy}
	}
	machines := map[[2]string]*simtest.DriverRoot{}
	for _, name := range slices.Sorted(maps.Keys(cases)) {
		c := cases[name]
		key := [2]string{c.board, c.partitions}
		if machines[key] == nil {
			machines[key] = simtest.Root(t, c.board, func(o *driverroot.Options) {
				if c.partitions != "" {
					o.GPUs = 4
				}
			})
			if c.partitions != "" {
				file := write(t, "version: v1\nmig-configs: {these: ["+c.partitions+"]}\n")
				run(t, machines[key], "nvidia-mig-parted", "apply", "--config-file", file, "--selected-config", "these")
			}
		}
		t.Run(name, func(t *testing.T) {
			settings := cmp.Or(c.settings, plain)
			compare(t, theirs(t, machines[key], c.strategy, settings), ours(t, machines[key], settings), c.differ)
		})
	}
}

// TestLabels_VirtualGPU_AsFeatureDiscovery has the signature of a vGPU in the configuration space, which only feature
// discovery reads.
func TestLabels_VirtualGPU_AsFeatureDiscovery(t *testing.T) {
	m := simtest.Root(t, "l40s-4", nil)
	simtest.Change(t, m, func(s *engine.State) { s.Profile.Board.Brand = 9 })
	state, err := m.State()
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range state.GPUs {
		file := filepath.Join(m.SysRoot, "bus/pci/devices", g.Address, "config")
		config, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		// A vendor-specific capability: the signature, and a record with the host's driver.
		copy(config[0x60:], "\x09\x00\x1dVF\x00\x18550.90.05\x00r550_00\x00\x00\x00")
		if err := os.WriteFile(file, config, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	compare(t, theirs(t, m, "none", "version: v1\n"), ours(t, m, ""), differences{
		"nvidia.com/vgpu.host-driver-*": "NVML reports no version of the host",
	})
}
