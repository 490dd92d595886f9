// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"context"
	"encoding/json"
	"errors"
	"slices"

	"k8s.io/klog/v2"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/pkg/gpu"
)

const labelSave host.Label = "inventory.save"

// saved is the content of Options.File.
type saved struct {
	Boot string `json:"boot"`
	// Bindings are those from before the scan: another load of the driver gives other numbers and partitions.
	Bindings string       `json:"bindings"`
	Snapshot gpu.Snapshot `json:"snapshot"`
}

// save writes a Snapshot for the next process. NVML can fail or hang when that one starts.
func (i *Inventory) save(ctx context.Context, s gpu.Snapshot) {
	if i.o.File == "" {
		return
	}
	boot, err := i.o.Host.BootID()
	var data []byte
	if err == nil {
		data, err = json.Marshal(saved{boot, i.bindings, s})
	}
	if err == nil {
		err = i.o.Host.WriteAtomic(labelSave, i.o.File, data, 0o600)
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Saving the GPUs for the next start of the plugin failed")
	}
}

// earlier returns the last Snapshot of an earlier process in this boot. It is zero if there is none, or if it cannot be
// read.
func (i *Inventory) earlier() gpu.Snapshot {
	if i.o.File == "" {
		return gpu.Snapshot{}
	}
	boot, bootErr := i.o.Host.BootID()
	data, err := i.o.Host.ReadFile(i.o.File)
	var s saved
	if errors.Join(bootErr, err) != nil || json.Unmarshal(data, &s) != nil || s.Boot != boot ||
		s.Bindings != Bindings(i.o.SysRoot) {
		return gpu.Snapshot{}
	}
	i.peers, i.silent = map[[2]string]bool{}, map[string]int{}
	for _, g := range s.Snapshot.GPUs {
		if g.Silent {
			i.silent[g.PCIAddress] = pollsToUnknown
		}
		for _, o := range s.Snapshot.GPUs {
			i.peers[[2]string{g.UUID, o.UUID}] = !slices.Contains(g.Unreachable, o.PCIAddress)
		}
	}
	return s.Snapshot
}
