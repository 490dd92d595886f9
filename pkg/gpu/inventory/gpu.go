// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"gpu-dra-driver/internal/host"
	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/nvml/sessionpool"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/health"
)

var uuidForm = regexp.MustCompile(`^GPU-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

// reader reads one GPU. It keeps the first error that makes the GPU unusable.
type reader struct {
	err error
	// driver is the driver's version; known has the profiles of earlier scans. cgroups is the root of the node's
	// cgroups.
	driver, cgroups string
	known           *sync.Map
}

// require keeps the error of a query that every usable GPU answers.
func (r *reader) require(what string, err error) {
	if err != nil && r.err == nil {
		r.err = fmt.Errorf("read %s: %w", what, err)
	}
}

// essential reports whether a query succeeded that decides which devices the GPU offers. Only the answer "not
// supported" leaves the field empty.
func (r *reader) essential(what string, err error) bool {
	if !nvml.Unavailable(err) {
		r.require(what, err)
	}
	return err == nil
}

// optional reports whether a query that describes the GPU succeeded. Its error leaves the field empty, unless the GPU
// is lost or needs a reset.
func (r *reader) optional(what string, err error) bool {
	if sessionpool.IsGone(err) {
		r.require(what, err)
	}
	return err == nil
}

// name returns the name of an enumeration's value, or "" if NVML defines none.
func (r *reader) name(what string, value fmt.Stringer, err error) string {
	if !r.optional(what, err) || value.String() == "Unknown" {
		return ""
	}
	return value.String()
}

// reading is the attempt of a scan to read one GPU.
type reading struct {
	session *session
	driver  string
	device  nvml.Device
	gpu     gpu.GPU
	// health is nil if the GPU does not report it.
	health *health.Reading
}

// readGPUs reads n GPUs, concurrently because one can hang, and adds them to a Snapshot. It returns the readings by PCI
// address.
func (i *Inventory) readGPUs(session *session, n int, s *gpu.Snapshot) map[string]reading {
	gpus := map[string]reading{}
	for index := range n {
		gpus[strconv.Itoa(index)] = reading{session: session, driver: s.Driver.Version, gpu: gpu.GPU{Index: index}}
	}
	i.await(session, i.reading.Begin(gpus, i.readGPU))
	read, answered := map[string]reading{}, map[int]bool{}
	ended, _ := i.reading.Results()
	slices.SortFunc(ended, func(a, b host.Attempt[reading]) int {
		return cmp.Compare(a.Item.gpu.Index, b.Item.gpu.Index)
	})
	for _, a := range ended {
		r := a.Item
		if r.session != session {
			continue // It answered after its scan.
		}
		answered[r.gpu.Index] = true
		if a.Err != nil {
			s.Problems = append(s.Problems, gpu.Problem{
				PCIAddress: r.gpu.PCIAddress, UUID: r.gpu.UUID, Index: r.gpu.Index,
				Lost: errors.Is(a.Err, nvml.GPUIsLost), Message: a.Err.Error(),
			})
			continue
		}
		i.place(&r.gpu)
		read[r.gpu.PCIAddress] = r
		s.GPUs = append(s.GPUs, r.gpu)
	}
	for index := range n {
		if !answered[index] {
			s.Problems = append(s.Problems, gpu.Problem{Index: index, Silent: true, Message: gpu.SilentText})
		}
	}
	return read
}

// readGPU reads one GPU. It can return after its scan.
func (i *Inventory) readGPU(a *reading) error {
	r := reader{driver: a.driver, cgroups: i.o.Cgroups, known: &i.profiles}
	d, err := a.session.Device(a.gpu.Index)
	r.require("the GPU's handle", err)
	if err == nil {
		r.identity(d, &a.gpu)
		r.description(d, &a.gpu)
	}
	if a.device = d; r.err != nil || i.o.Health == nil {
		return r.err
	}
	if h, err := d.Health(); err == nil {
		a.health = &health.Reading{
			Recovery:        int(h.Recovery),
			RemapFailed:     h.RemapFailed || h.UnrepairableMemory,
			SRAMWorn:        h.SRAMThresholdExceeded,
			At:              time.Now(),
			RemapPending:    h.RemapPending,
			Slow:            h.Slowdowns != 0,
			NoPersistence:   h.NoPersistence,
			Width:           h.PCIeWidth,
			MaxWidth:        h.PCIeMaxWidth,
			Busy:            h.Busy,
			Corrected:       h.CorrectableErrors,
			Uncorrected:     h.UncorrectableErrors,
			CorrectedRows:   h.CorrectableRows,
			UncorrectedRows: h.UncorrectableRows,
		}
	}
	return nil
}

// identity reads the PCI address, the UUID and the minor number. It refuses malformed values, because device names and
// claim statuses contain them.
func (r *reader) identity(d nvml.Device, g *gpu.GPU) {
	pci, err := d.PCI()
	if err == nil {
		g.PCIAddress, err = gpu.CanonicalAddress(pci.BusID)
	}
	r.require("the PCI address", err)
	uuid, err := d.UUID()
	if err == nil && !uuidForm.MatchString(uuid) {
		err = fmt.Errorf("%q is not a GPU UUID", uuid)
	} else {
		g.UUID = uuid
	}
	r.require("the UUID", err)
	g.Minor, err = d.MinorNumber()
	if err == nil && g.Minor < 0 {
		err = fmt.Errorf("%d is not a minor number", g.Minor)
	}
	if nvml.Unavailable(err) {
		err = fmt.Errorf("%w: the GPU has no device node /dev/nvidia<minor>, as in WSL, which this driver does not "+
			"support", err)
	}
	r.require("the minor number", err)
}

func (r *reader) description(d nvml.Device, g *gpu.GPU) {
	var err error
	g.ProductName, err = d.Name()
	r.optional("the product name", err)
	brand, err := d.Brand()
	g.Brand = r.name("the brand", brand, err)
	architecture, err := d.Architecture()
	g.Architecture = r.name("the architecture", architecture, err)
	mode, err := d.AddressingMode()
	g.AddressingMode = r.name("the addressing mode", mode, err)
	major, minor, err := d.CUDAComputeCapability()
	if r.optional("the compute capability", err) {
		g.ComputeCapability = gpu.Version{Major: major, Minor: minor}
	}
	memory, err := d.Memory()
	if r.essential("the memory", err) {
		g.MemoryBytes, g.ReservedBytes = memory.Total, memory.Reserved
	}
	cores, err := d.Cores()
	if r.optional("the number of cores", err) {
		g.Multiprocessors = multiprocessors(cores, g.ComputeCapability)
	}
	virtualization, err := d.VirtualizationMode()
	if g.VGPU = r.optional("the virtualization mode", err) && virtualization == nvml.VirtualizationVGPU; !g.VGPU {
		r.mig(d, architecture, g)
	}
	if !g.MIG.Enabled { // In MIG mode a GPU has no peers, and NVML's link states mean nothing.
		r.links(d, g)
		r.fabric(d, g)
	}
	// MPS can limit a client's memory and SMs since Volta. A vGPU guest has no MPS of its own.
	// https://docs.nvidia.com/deploy/mps/index.html
	g.MPSCapable = g.ComputeCapability.Major >= 7 && !g.VGPU && !slices.Contains(guestBrands, brand)
	if r.cgroups != "" {
		_, err = d.MemoryLimit(r.cgroups)
		g.MemoryLimits = r.optional("the limit of all cgroups", err) || errors.Is(err, nvml.NotFound)
	}
}

// guestBrands are the vGPU licences, which only GPUs in virtual machines have.
var guestBrands = []nvml.Brand{nvml.BrandGrid, nvml.BrandVApps, nvml.BrandVPC, nvml.BrandVCS, nvml.BrandVWS}

// coresPerSM follows _ConvertSMVer2Cores in Common/helper_cuda.h of NVIDIA's cuda-samples.
var coresPerSM = map[gpu.Version]int{
	{Major: 3, Minor: 0}: 192, {Major: 3, Minor: 2}: 192, {Major: 3, Minor: 5}: 192, {Major: 3, Minor: 7}: 192,
	{Major: 5, Minor: 0}: 128, {Major: 5, Minor: 2}: 128, {Major: 5, Minor: 3}: 128,
	{Major: 6, Minor: 0}: 64, {Major: 6, Minor: 1}: 128, {Major: 6, Minor: 2}: 128,
	{Major: 7, Minor: 0}: 64, {Major: 7, Minor: 2}: 64, {Major: 7, Minor: 5}: 64,
	{Major: 8, Minor: 0}: 64, {Major: 8, Minor: 6}: 128, {Major: 8, Minor: 7}: 128, {Major: 8, Minor: 9}: 128,
	{Major: 9, Minor: 0}:  128,
	{Major: 10, Minor: 0}: 128, {Major: 10, Minor: 1}: 128, {Major: 10, Minor: 3}: 128, {Major: 11, Minor: 0}: 128,
	{Major: 12, Minor: 0}: 128, {Major: 12, Minor: 1}: 128,
}

// multiprocessors returns 0 if the capability is unknown or does not divide the cores.
func multiprocessors(cores int, capability gpu.Version) int {
	per := coresPerSM[capability]
	if per == 0 || cores < 0 || cores%per != 0 {
		return 0
	}
	return cores / per
}

// place sets the GPU's position from sysfs. Missing values stay empty. A complete position is read once: it depends
// only on the path of the bridges, to which the device's link in sysfs points.
func (i *Inventory) place(g *gpu.GPU) {
	path, err := os.Readlink(filepath.Join(i.o.SysRoot, "bus/pci/devices", g.PCIAddress))
	if known, ok := i.places[path]; ok && err == nil {
		g.PCIeRoot, g.Bridges, g.Class, g.NUMANode = known.PCIeRoot, known.Bridges, known.Class, known.NUMANode
		return
	}
	if errors.Is(err, fs.ErrNotExist) {
		// sysfs does not have the device: the attempts to read its files would cost more than the rest of a scan.
		return
	}
	i.readPlace(g)
	if err == nil && g.PCIeRoot != "" && g.Class != "" {
		i.places[path] = *g
	}
}

func (i *Inventory) readPlace(g *gpu.GPU) {
	sys := deviceattribute.WithFSFromRoot(i.o.SysRoot)
	if a, err := deviceattribute.GetPCIeRootAttributeByPCIBusID(g.PCIAddress, sys); err == nil &&
		a.Value.StringValue != nil {
		g.PCIeRoot = *a.Value.StringValue
	}
	g.Bridges = i.bridges(g.PCIAddress)
	g.Class = i.sys("bus/pci/devices", g.PCIAddress, "class")
	a, err := deviceattribute.GetNUMANodeAttributeByPCIBusID(g.PCIAddress, deviceattribute.ScalarAttribute, sys)
	if err == nil && a.Value.IntValue != nil {
		g.NUMANode = new(int(*a.Value.IntValue))
	}
}

// sys reads a file of sysfs; an unreadable one is empty.
func (i *Inventory) sys(path ...string) string {
	data, err := os.ReadFile(filepath.Join(append([]string{i.o.SysRoot}, path...)...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(data))
}
