// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"time"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/gpu"
)

const (
	LabelGPU       host.Label = "record.gpu"
	labelGPURemove host.Label = "record.gpu-remove"
)

// GPU records a GPU setting that the driver changed, and the value to restore. Settings outlive claims, so they have
// their own records: durable before the change, removed after the restore.
type GPU struct {
	BootID     string `json:"bootID"`
	PCIAddress string `json:"pciAddress"`
	UUID       string `json:"uuid"`
	// Found is NVML's value before the driver changed it, Set the value since.
	Found int `json:"found"`
	Set   int `json:"set"`
	// Interconnect is the GPU's before the change, if the setting hides it.
	Interconnect gpu.Interconnect `json:"wiring,omitzero"`
	// Faults are the GPU's faults, if the record is about them instead of a setting.
	Faults []gpu.Fault `json:"faults,omitempty"`
	// Stuck are partitions of ended claims that could not be destroyed, if the record is about them.
	Stuck []plan.Partition `json:"stuck,omitempty"`
	// Served is the extended resource as which a device plugin serves the GPU, if the record is about that.
	Served string `json:"served,omitempty"`
	// Attempted is the time since the boot of the last reset, if the record is about resets.
	Attempted time.Duration `json:"attempted,omitempty"`
}

// GPUs stores the records of one setting, one file for each GPU.
type GPUs struct {
	host         *host.Host
	dir, setting string
}

func OpenGPUs(h *host.Host, dir, setting string) (*GPUs, error) {
	g := &GPUs{host: h, dir: filepath.Join(dir, setting), setting: setting}
	if err := h.MkdirAll(labelMkdir, 0o700, g.dir); err != nil {
		return nil, fmt.Errorf("make the directory of GPU records %s: %w", g.dir, err)
	}
	return g, nil
}

// Get reads a GPU's record. A missing one is fs.ErrNotExist. A damaged one is ErrUnreadable: the driver changed the
// setting, but the value to restore is lost.
func (g *GPUs) Get(address string) (GPU, error) {
	var r GPU
	data, err := read(g.host, file(g.dir, address))
	if err == nil {
		err = Unseal(data, gpuKind, &r)
	}
	if err == nil && r.PCIAddress != address {
		err = fmt.Errorf("%w: it names GPU %s", ErrUnreadable, r.PCIAddress)
	}
	if err != nil {
		return GPU{}, fmt.Errorf("read the record of %s of GPU %s: %w", g.setting, address, err)
	}
	return r, nil
}

// SetUnknown is the value of GPU.Set during a change, and of an unreadable record.
const SetUnknown = -1

// OfBoot reads the record of a board that was written in this boot. known is false if there is none; r is a new one
// then. An unreadable record is known, with Found 0, each setting's default: the driver has changed the setting, so the
// present value is not the one to restore.
func (g *GPUs) OfBoot(address, uuid string) (r GPU, known bool, err error) {
	boot, err := g.host.BootID()
	if err != nil {
		return GPU{}, false, err
	}
	r, err = g.Get(address)
	fresh := GPU{BootID: boot, PCIAddress: address, UUID: uuid}
	switch {
	case errors.Is(err, ErrUnreadable):
		fresh.Set = SetUnknown
		return fresh, true, nil
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return GPU{}, false, err
	case err == nil && r.BootID == boot && r.UUID == uuid:
		return r, true, nil
	}
	return fresh, false, nil
}

// Restore calls set with the value from before the driver's change, then removes the record. Without a record it does
// nothing. An unreadable record counts as 0, each setting's default. Restore drops a record of another board or, unless
// the setting outlives a boot, of another boot. The caller holds the GPU's lock.
func (g *GPUs) Restore(address, uuid string, outlivesBoot bool, set func(found int) error) error {
	r, err := g.Get(address)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err == nil:
		boot, err := g.host.BootID()
		if err != nil {
			return err
		}
		if r.UUID != uuid || r.BootID != boot && !outlivesBoot {
			return g.Remove(address)
		}
	case !errors.Is(err, ErrUnreadable):
		return err
	}
	if err := set(r.Found); err != nil {
		return err
	}
	return g.Remove(address)
}

// Put writes a GPU's record durably. The caller holds the GPU's lock.
func (g *GPUs) Put(r GPU) error {
	data, err := Seal(gpuKind, r)
	if err != nil {
		return err
	}
	return g.host.WriteDurable(LabelGPU, file(g.dir, r.PCIAddress), data, 0o600)
}

// Remove removes a GPU's record and unfinished writes of it. A missing record is not an error.
func (g *GPUs) Remove(address string) error {
	path := file(g.dir, address)
	return errors.Join(g.host.RemoveUnfinished(labelGPURemove, path), g.host.Remove(labelGPURemove, path))
}

// Addresses lists the GPUs that have a record, readable or not.
func (g *GPUs) Addresses() ([]string, error) {
	names, _, err := g.host.List(g.dir)
	if err != nil {
		return nil, fmt.Errorf("list the records of %s: %w", g.setting, err)
	}
	var out []string
	for _, name := range names {
		address, ok := strings.CutSuffix(name, suffix)
		if canonical, err := gpu.CanonicalAddress(address); ok && err == nil && canonical == address {
			out = append(out, address)
		}
	}
	return out, nil
}
