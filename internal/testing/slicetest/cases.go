// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package slicetest

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/pkg/wire"
	"gpu-dra-driver/sim/profiles"
)

// Case is a node: a board, what NVML and sysfs say of it, the settings, what the cluster asks for, and the API
// server's features.
type Case struct {
	Name     string
	Snapshot gpu.Snapshot
	Settings sharing.Settings
	Change   func(*resourceslices.Options)
}

// Slices returns the slices of the node.
func (c Case) Slices() []*resourceapi.ResourceSlice {
	return Slices(c.Snapshot, "n1", c.Settings, c.Change)
}

// settingsFiles are settings of all kinds: sections, strategies, replicas, names, limits and single devices.
var settingsFiles = func() map[string]string {
	out := map[string]string{
		"none":               "",
		"not shared":         "sharing: {strategy: None}",
		"time slices":        "sharing: {strategy: TimeSlicing}",
		"MPS, few":           "sharing: {strategy: MPS, maxShares: 1}",
		"default of a chart": "publish: [{profiles: Auto, groups: Auto, monitors: Auto, shareable: Auto}]",
		"nothing":            "publish: [{profiles: None, groups: None, monitors: None, shareable: None}]",
		"one profile":        "publish: [{profiles: [Auto, 1g.10gb], shareable: Partitions}]",
		"one device": "sharing: {timeSlicing: {renameByDefault: true, resources: [{name: nvidia.com/gpu, rename: " +
			"nvidia.com/" +
			strings.Repeat("x", 200) + ", devices: [0], replicas: 2}, {name: nvidia.com/gpu, replicas: 3}]}}",
	}
	for _, section := range []string{"timeSlicing", "mps"} {
		for _, renamed := range []bool{false, true} {
			for _, replicas := range []int{1, 7, 1000} {
				interval, publish := "", ", shareable: Auto, profiles: Auto"
				if section == "timeSlicing" {
					interval, publish = ", interval: Long", ""
				}
				out[fmt.Sprintf("%s, renamed %v, %d replicas", section, renamed, replicas)] = fmt.Sprintf(
					"publish: [{groups: All%s}]\n"+
						"sharing: {%s: {renameByDefault: %v, failRequestsGreaterThanOne: true, maxShares: 40%s, "+
						"resources: [{name: nvidia.com/gpu, replicas: %d}, {name: nvidia.com/mig-*, replicas: %d}]}}",
					publish, section, renamed, interval, replicas, replicas)
			}
		}
	}
	return out
}()

// demand is a Demand with one answer for each kind.
type demand struct{ placements, groups, monitors, shares sharing.Placements }

func (d demand) Placements(gpu.GPU, string) sharing.Placements { return d.placements }

func (d demand) Groups() sharing.Placements { return d.groups }

func (d demand) Monitors() sharing.Placements { return d.monitors }

func (d demand) Shares(gpu.GPU) sharing.Placements { return d.shares }

var demands = func() map[string]sharing.Demand {
	nothing := demand{sharing.LaterPlacements, sharing.NoPlacement, sharing.OnePlacement, sharing.LaterPlacements}
	out := map[string]sharing.Demand{"no controller": nil, "nothing": nothing, "all": demand{}}
	shares, partitions, groups, monitors, sample := nothing, nothing, nothing, nothing, nothing
	shares.shares, partitions.placements, groups.groups, monitors.monitors = 0, 0, 0, 0
	sample.placements = sharing.OnePlacement
	out["shares"], out["partitions"], out["groups"], out["monitors"], out["a sample"] = shares, partitions, groups,
		monitors, sample
	out["everything ends"] = demand{sharing.EndingPlacements, sharing.EndingPlacements, sharing.EndingPlacements,
		sharing.EndingPlacements}
	return out
}()

// servers are API servers without some features.
var servers = map[string]func(*resourceslices.Options){
	"all features": func(o *resourceslices.Options) { o.NoEffectTaints = true },
	"1.34":         func(o *resourceslices.Options) { o.Counters = false },
	"reduced": func(o *resourceslices.Options) {
		o.Taints, o.SharedDevices, o.Counters = false, false, false
	},
	"faulty scheduler": func(o *resourceslices.Options) { o.SharedDevices, o.HeldShares = false, true },
}

const allFacts = "all facts"

// boards are a board as the simulator has it, with all optional facts, with hostile ones, and with none.
func boards(name string) (map[string]gpu.Snapshot, error) {
	scanned, err := Scan(name, "n1", 0)
	if err != nil {
		return nil, err
	}
	scanned.GPUs = scanned.GPUs[:min(2, len(scanned.GPUs))]
	with := func(do func(*gpu.Snapshot, *gpu.GPU)) gpu.Snapshot {
		out := scanned
		out.GPUs = slices.Clone(scanned.GPUs)
		for i := range out.GPUs {
			do(&out, &out.GPUs[i])
		}
		return out
	}
	all := func(s *gpu.Snapshot, g *gpu.GPU) {
		node := 1
		s.Machine, g.Class, g.NUMANode = "ProLiant XL675d Gen10 Plus", "0x030200", &node
		g.AddressingMode, g.MemoryLimits = "HMM", true
		if len(g.Links) == 0 && len(scanned.GPUs) > 1 {
			g.Links = []gpu.Link{{Version: 4, Peer: gpu.PeerSwitch}}
		}
		g.Fabric = gpu.Fabric{State: gpu.FabricReady, ClusterUUID: "7b2d2ae9-3a35-4d9c-8f7b-9b2a1f1ad9d1", CliqueID: 3}
	}
	return map[string]gpu.Snapshot{
		"simulated": scanned,
		allFacts:    with(all),
		"hostile": with(func(s *gpu.Snapshot, g *gpu.GPU) {
			all(s, g)
			long := strings.Repeat("ü\xff/", 100)
			s.Machine, s.Driver.Version, g.ProductName, g.Brand, g.Architecture, g.AddressingMode = long,
				"0580.00126.09", long, long, long, long
			g.UUID, g.PCIeRoot, g.Fabric.ClusterUUID, g.Class = "GPU-"+long, long, long, long
			g.ComputeCapability, g.Multiprocessors, g.Index = gpu.Version{Major: 1 << 30, Minor: 1 << 30}, 1<<31-1, -1
		}),
		"little memory": with(func(_ *gpu.Snapshot, g *gpu.GPU) { g.MemoryBytes = 32<<20 + 1 }),
		"unknown": with(func(s *gpu.Snapshot, g *gpu.GPU) {
			s.Driver.Version = "580.126.09.01"
			*g = gpu.GPU{PCIAddress: g.PCIAddress, UUID: g.UUID, MIG: g.MIG}
		}),
	}, nil
}

// states are the GPUs as they are, and with all taints at once.
var states = map[string]func(gpu.Snapshot, *resourceslices.Options){
	"well": func(gpu.Snapshot, *resourceslices.Options) {},
	"cordoned, reserved, stuck and held": func(s gpu.Snapshot, o *resourceslices.Options) {
		o.Cordons, o.Reserved, o.Stuck, o.AllowReset = wire.Cordons{}, sets.New[string](), map[string][]gpu.Partition{},
			true
		o.Evict = []string{string(resourceslices.Stuck), string(resourceslices.NoDemand)}
		for i, g := range s.GPUs {
			o.Cordons[g.PCIAddress] = resourceapi.DeviceTaintEffectNoExecute
			o.Reserved.Insert(g.PCIAddress)
			for _, p := range g.MIG.Profiles[:min(i, len(g.MIG.Profiles), 1)] {
				o.Stuck[g.PCIAddress] = []gpu.Partition{{Profile: p.Name, Placement: p.Placements[0]}}
			}
			o.Held = append(o.Held, resourceslices.Held{
				Device: gpu.Device{Kind: []gpu.Kind{gpu.KindGPU, gpu.KindMonitor}[i%2], PCIAddress: g.PCIAddress},
				Share:  true, GPU: g,
			})
		}
	},
}

// Cases returns each board with all facts, each setting and each demand. Servers and states take turns, because all
// combinations are too many, and so are the cases with other facts. Boards have two GPUs.
func Cases() iter.Seq2[Case, error] {
	return func(yield func(Case, error) bool) {
		turn := 0
		for _, board := range profiles.Names() {
			kinds, err := boards(board)
			if err != nil {
				yield(Case{Name: board}, err)
				return
			}
			for _, kind := range sorted(kinds) {
				for _, file := range sorted(settingsFiles) {
					settings, _, err := sharing.Parse([]byte(settingsFiles[file]))
					if err != nil {
						yield(Case{Name: file}, err)
						return
					}
					for _, asked := range sorted(demands) {
						if turn++; kind != allFacts && turn%7 > 0 {
							continue
						}
						c := of(kinds[kind], settings, demands[asked], turn)
						c.Name = strings.Join([]string{board, kind, file, asked, c.Name}, "; ")
						if !yield(c, nil) {
							return
						}
					}
				}
			}
		}
	}
}

// of returns the case with the next server and state.
func of(snapshot gpu.Snapshot, settings sharing.Settings, demand sharing.Demand, turn int) Case {
	server, state := sorted(servers)[turn%len(servers)], sorted(states)[turn/len(servers)%len(states)]
	return Case{
		Name: server + "; " + state, Snapshot: snapshot, Settings: settings,
		Change: func(o *resourceslices.Options) {
			o.Sharing = sharing.Node{Name: o.Node, Settings: settings, MPS: true, Demand: demand}
			states[state](snapshot, o)
			servers[server](o)
		},
	}
}

func sorted[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
