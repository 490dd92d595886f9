// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package sampler

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/nvml/nvmltest"
	"gpu-dra-driver/internal/procfs"
	"gpu-dra-driver/internal/seedtest"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/sim/engine"
	"gpu-dra-driver/sim/simtest"
)

// fileNames are names such as u-1.0, the first file of claim u-1.
type fileNames struct{}

func (fileNames) ParseMetadataName(name string) (uid string, number int, ok bool) {
	uid, digit, _ := strings.Cut(name, ".")
	number, err := strconv.Atoi(digit)
	return uid, number, err == nil && name == fmt.Sprintf("%s.%d", uid, number)
}

func mountsOf(t *testing.T, own []procfs.Mount) *Mounts {
	t.Helper()
	m, err := NewMounts(own, "/state", fileNames{})
	must(t, err)
	return m
}

// process writes the files of /proc about a process with the mounts of metadata files.
func (n *node) process(t *testing.T, pid uint32, start int, files ...string) {
	t.Helper()
	dir := filepath.Join(n.proc, fmt.Sprint(pid))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	mounts := "30 1 0:50 / / rw - overlay overlay rw\n"
	for _, f := range files {
		mounts += "31 30 8:1 /state/" + f + " /var/run/metadata ro - ext4 /dev/sda1 rw\n"
	}
	stat := fmt.Sprintf("%d (cuda) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 %d 20\n", pid, start)
	for name, text := range map[string]string{"stat": stat, "mountinfo": mounts} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// load adds processes to the first GPU.
func (n *node) load(t *testing.T, processes ...engine.Process) {
	t.Helper()
	simtest.Change(t, n.machine, func(s *engine.State) {
		for _, p := range processes {
			if err := s.AddProcess(&s.GPUs[0], p); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// shares returns claims with a share of the first GPU each, and makes the Sampler look for their processes.
func (n *node) shares(uids ...string) (plans []plan.Plan) {
	for _, uid := range uids {
		d := plan.Device{Request: "r", Kind: gpu.KindGPU, UUID: n.targets[0].UUID, PCIAddress: n.targets[0].PCIAddress}
		plans = append(plans, plan.Plan{Claim: plan.Claim{UID: uid}, Metadata: plan.Metadata{Files: true}, Devices: []plan.Device{d}})
	}
	n.targets = Targets(gpu.Snapshot{GPUs: []gpu.GPU{n.targets[0].GPU}}, plans, false)
	return plans
}

func (n *node) uses(t *testing.T, plans []plan.Plan) (uses []Use) {
	t.Helper()
	all := Uses(n.must(t), plans)
	for i := range plans {
		uses = append(uses, all[[2]int{i, 0}])
	}
	return uses
}

func check(t *testing.T, of string, u Use, utilization, mib, processes float64) {
	t.Helper()
	memory := mib * (1 << 20)
	if mib == Absent {
		memory = Absent
	}
	if !near(u.Utilization, utilization) || u.MemoryUsed != memory || u.Processes != processes {
		t.Errorf("%s: utilization %v, %v bytes, %v processes; want %v, %v MiB, %v", of, u.Utilization, u.MemoryUsed, u.Processes, utilization, mib, processes)
	}
}

func TestRead_SharesOfOneGPU_HaveTheirProcesses(t *testing.T) {
	n := newNode(t, "hgx-h100")
	plans := n.shares("a", "b", "idle", "without")
	plans[3].Metadata.Files = false
	n.process(t, 5, 1, "a.0", "a.0", "a.0x", "other.0")
	n.process(t, 6, 1, "b.0")
	n.process(t, 7, 1, "b.0")
	n.process(t, 8, 1) // As an MPS server.
	n.load(t, engine.Process{PID: 5, MemoryMiB: 100, Load: 10}, engine.Process{PID: 6, MemoryMiB: 200, Load: 30},
		engine.Process{PID: 7, MemoryMiB: 400, Load: 20}, engine.Process{PID: 8, MemoryMiB: 50, Load: 5})
	uses := n.uses(t, plans)
	check(t, "a", uses[0], .1, 100, 1)
	check(t, "b", uses[1], .5, 600, 2)
	check(t, "idle", uses[2], 0, 0, 0)
	check(t, "without metadata", uses[3], Absent, Absent, Absent)
	check(t, "alone", Uses(n.Snapshot(), plans[:1])[[2]int{}], .65, 750, 4)
}

func TestRead_UnknownProcess_NoShareIsMeasured(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*node)
		want   [3]float64
	}{
		"a process that NVML goes on to list is not in /proc": {func(n *node) {
			must(t, os.RemoveAll(filepath.Join(n.proc, "6")))
		}, [3]float64{Absent, Absent, Absent}},
		"its mounts are unreadable": {func(n *node) {
			must(t, os.Remove(filepath.Join(n.proc, "6", "mountinfo")))
			must(t, os.Mkdir(filepath.Join(n.proc, "6", "mountinfo"), 0o755))
		}, [3]float64{Absent, Absent, Absent}},
		"no list of processes": {func(n *node) {
			n.calls.Answer(nvml.NotSupported, nvmltest.Of("nvmlDeviceGetComputeRunningProcesses_v3", n.targets[0].UUID))
		}, [3]float64{Absent, Absent, Absent}},
		"no utilization of processes": {func(n *node) {
			n.calls.Answer(nvml.NotSupported, nvmltest.Of("nvmlDeviceGetProcessUtilization", n.targets[0].UUID))
		}, [3]float64{Absent, 100, 1}},
		"unknown directory":     {func(n *node) { n.owners.mounts = nil }, [3]float64{Absent, Absent, Absent}},
		"another PID namespace": {func(n *node) { n.owners = nil }, [3]float64{Absent, Absent, Absent}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "hgx-h100")
			plans := n.shares("a", "b")
			n.process(t, 5, 1, "a.0")
			n.process(t, 6, 1, "b.0")
			n.load(t, engine.Process{PID: 5, MemoryMiB: 100, Load: 10}, engine.Process{PID: 6, MemoryMiB: 200, Load: 30})
			c.change(n)
			check(t, "a", n.uses(t, plans)[0], c.want[0], c.want[1], c.want[2])
		})
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestRead_ProcessEndsAfterList_IsIgnored removes a process after NVML's list, before /proc is read.
func TestRead_ProcessEndsAfterList_IsIgnored(t *testing.T) {
	n := newNode(t, "hgx-h100")
	plans := n.shares("a", "b")
	n.process(t, 5, 1, "a.0")
	n.load(t, engine.Process{PID: 5, MemoryMiB: 100, Load: 10}, engine.Process{PID: 6, MemoryMiB: 200, Load: 30})
	n.calls.Answer(0, func(_ int, c nvmltest.Call) bool {
		// Its utilization is read after the list.
		if c.Query == "nvmlDeviceGetProcessUtilization" {
			simtest.Change(t, n.machine, func(s *engine.State) {
				if err := s.RemoveProcess(&s.GPUs[0], 6); err != nil {
					t.Error(err)
				}
			})
		}
		return false
	})
	uses := n.uses(t, plans)
	check(t, "a", uses[0], .1, 100, 1)
	check(t, "b", uses[1], 0, 0, 0)
}

func TestRead_PIDOfAnotherClaim_CountsThere(t *testing.T) {
	n := newNode(t, "hgx-h100")
	plans := n.shares("a", "b")
	n.process(t, 5, 1, "a.0")
	n.load(t, engine.Process{PID: 5, MemoryMiB: 100, Load: 10})
	check(t, "a", n.uses(t, plans)[0], .1, 100, 1)
	n.process(t, 5, 1, "b.0")
	check(t, "a, known", n.uses(t, plans)[0], .1, 100, 1) // Its mounts are read once.
	n.process(t, 5, 2, "b.0")
	uses := n.uses(t, plans)
	check(t, "a", uses[0], 0, 0, 0)
	check(t, "b", uses[1], .1, 100, 1)
	simtest.Change(t, n.machine, func(s *engine.State) { must(t, s.RemoveProcess(&s.GPUs[0], 5)) })
	n.must(t)
	n.must(t)
	if len(n.owners.last)+len(n.owners.now) != 0 {
		t.Errorf("%v and %v are remembered after their end", n.owners.last, n.owners.now)
	}
}

func TestRead_SharesOfPartition_HaveMemoryOnly(t *testing.T) {
	n := newNode(t, "hgx-h100")
	n.partition(t, 19, engine.Process{PID: 5, MemoryMiB: 1024, Load: 50})
	p := &n.targets[0].Partitions[0]
	p.Shared = true
	n.process(t, 5, 1, "a.0")
	d := plan.Device{Request: "r", Kind: gpu.KindMIG, UUID: n.targets[0].UUID, Partition: plan.Partition{UUID: p.UUID}}
	plans := []plan.Plan{
		{Claim: plan.Claim{UID: "a"}, Metadata: plan.Metadata{Files: true}, Devices: []plan.Device{d}},
		{Claim: plan.Claim{UID: "b"}, Metadata: plan.Metadata{Files: true}, Devices: []plan.Device{d}},
	}
	uses := n.uses(t, plans)
	check(t, "a", uses[0], Absent, 1024, 1)
	check(t, "b", uses[1], Absent, 0, 0)
}

// TestDivide_RequestsOfOneClaim_TellsContainersApart has a process of each request, and one with the files of both.
func TestDivide_RequestsOfOneClaim_TellsContainersApart(t *testing.T) {
	first, second := File{"a", 0}, File{"a", 1}
	users := []user{{[2]int{0, 0}, first, true}, {[2]int{0, 1}, second, true}, {[2]int{1, 0}, File{"b", 0}, true}}
	d := Device{Utilization: 1, MemoryUsed: 100, Processes: []Process{
		{Memory: 1, Utilization: .1, Files: []File{first}}, {Memory: 2, Utilization: .2, Files: []File{second, {"elsewhere", 0}}},
	}}
	got := divide(d, users)
	if got[[2]int{0, 0}] != (part{.1, 1, 1}) || got[[2]int{0, 1}] != (part{.2, 2, 1}) || got[[2]int{1, 0}] != (part{0, 0, 0}) {
		t.Errorf("%v", got)
	}
	d.Processes = append(d.Processes, Process{Memory: 4, Utilization: .4, Files: []File{second, first}}, Process{Memory: 1, Files: []File{first}})
	got = divide(d, users)
	none := part{Absent, Absent, Absent}
	if got[[2]int{0, 0}] != none || got[[2]int{0, 1}] != none || got[[2]int{1, 0}] != (part{0, 0, 0}) {
		t.Errorf("%v with a process of both requests", got)
	}
	d.Processes = []Process{{Memory: Absent, Utilization: .1, Files: []File{first}}}
	if got := divide(d, users); got[[2]int{0, 0}] != (part{.1, Absent, 1}) {
		t.Errorf("%v of a process with unknown memory", got)
	}
}

// TestDivide_RandomProcesses_SumIsAtMostTheDevices has processes that together use more than the device does.
func TestDivide_RandomProcesses_SumIsAtMostTheDevices(t *testing.T) {
	for seed := range seedtest.Each(t, 2000) {
		r := rand.New(rand.NewPCG(seed, 1))
		var users []user
		for n := range 2 + r.IntN(4) {
			users = append(users, user{[2]int{n, 0}, File{fmt.Sprint(n % 5), 0}, r.IntN(8) > 0})
		}
		d := Device{Kind: gpu.KindGPU, Utilization: r.Float64(), MemoryUsed: 100 * r.Float64(), Processes: []Process{}}
		for range r.IntN(6) {
			p := Process{Utilization: r.Float64(), Memory: 50 * r.Float64(), Files: []File{}}
			for range r.IntN(3) {
				p.Files = append(p.Files, File{fmt.Sprint(r.IntN(7)), 0})
			}
			d.Processes = append(d.Processes, p)
		}
		var sum part
		for _, p := range divide(d, users) {
			sum.utilization, sum.memory, sum.processes = sum.utilization+max(0, p.utilization), sum.memory+max(0, p.memory), sum.processes+max(0, p.processes)
		}
		if sum.utilization > d.Utilization+1e-9 || sum.memory > d.MemoryUsed+1e-9 || int(sum.processes) > len(d.Processes) {
			t.Fatalf("seed %d: %+v of claims, device %+v", seed, sum, d)
		}
	}
}

// TestMounted_FilesOfTenants_AreNoMetadata has the mounts that a tenant can make: files of its own volumes and file
// systems, also with the names and paths of another claim's file.
func TestMounted_FilesOfTenants_AreNoMetadata(t *testing.T) {
	own := []procfs.Mount{
		{Filesystem: "0:40", Root: "/", Point: "/"}, {Filesystem: "0:41", Root: "/", Point: "/state"},
		{Filesystem: "8:1", Root: "/lib/plugin/state", Point: "/state"}, {Filesystem: "8:2", Root: "/", Point: "/state/other"},
		{Filesystem: "8:3", Root: "/", Point: "/stat"},
	}
	is := mountsOf(t, own).file
	if f, ok := is(procfs.Mount{Filesystem: "8:1", Root: "/lib/plugin/state/u-1.3", Point: "/anywhere"}); !ok || f != (File{"u-1", 3}) {
		t.Errorf("%v, %v", f, ok)
	}
	for _, m := range []procfs.Mount{
		{Filesystem: "0:99", Root: "/lib/plugin/state/u-1.3"}, // A tmpfs.
		{Filesystem: "8:1", Root: "/pods/p/volumes/empty-dir/v/u-1.3"},
		{Filesystem: "8:1", Root: "/pods/p/volumes/empty-dir/v/lib/plugin/state/u-1.3"},
		{Filesystem: "8:1", Root: "/lib/plugin/state"}, {Filesystem: "8:1", Root: "/lib/plugin/state/d/u-1.3"},
		{Filesystem: "8:1", Root: "/lib/plugin/state/u-1"}, {Filesystem: "8:1", Root: "/state/u-1.3", Point: "/lib/plugin/state/u-1.3"},
		{},
	} {
		if f, ok := is(m); ok {
			t.Errorf("%+v is %v", m, f)
		}
	}
	if _, err := NewMounts(nil, "/state", fileNames{}); err == nil {
		t.Error("files can be recognized without the mounts of this process")
	}
}
