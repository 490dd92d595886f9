// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/internal/nvml/sessionpool"
	"gpu-dra-driver/pkg/gpu"
)

var uuidForm = regexp.MustCompile(`^GPU-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

// reader reads one GPU. It keeps the first error that makes the GPU unusable.
type reader struct {
	err error
	// driver is the driver's version; known are the profiles of earlier scans.
	driver string
	known  map[profileKey][]gpu.Profile
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

func (i *Inventory) readGPU(session nvml.Session, index int, driver string) (nvml.Device, gpu.GPU, *gpu.Problem) {
	g := gpu.GPU{Index: index}
	r := reader{driver: driver, known: i.profiles}
	d, err := session.Device(index)
	r.require("the GPU's handle", err)
	if err == nil {
		r.identity(d, &g)
		r.description(d, &g)
	}
	if r.err != nil {
		return nil, gpu.GPU{}, &gpu.Problem{
			PCIAddress: g.PCIAddress, UUID: g.UUID, Index: index,
			Lost: errors.Is(r.err, nvml.GPUIsLost), Message: r.err.Error(),
		}
	}
	i.place(&g)
	return d, g, nil
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
	r.mig(d, architecture, g)
	if !g.MIG.Enabled { // In MIG mode a GPU has no peers, and NVML's link states mean nothing.
		r.links(d, g)
		r.fabric(d, g)
	}
	// MPS can limit a client's memory and SMs since Volta. A vGPU guest has no MPS of its own.
	// https://docs.nvidia.com/deploy/mps/index.html
	g.MPSCapable = g.ComputeCapability.Major >= 7 && !slices.Contains(guestBrands, brand)
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

// place sets the GPU's position from sysfs. Missing values stay empty. A complete position is read once: it depends only
// on the path of the bridges, to which the device's link in sysfs points.
func (i *Inventory) place(g *gpu.GPU) {
	path, err := os.Readlink(filepath.Join(i.o.SysRoot, "bus/pci/devices", g.PCIAddress))
	if known, ok := i.places[path]; ok && err == nil {
		g.PCIeRoot, g.Bridges, g.Class, g.NUMANode = known.PCIeRoot, known.Bridges, known.Class, known.NUMANode
		return
	}
	if errors.Is(err, fs.ErrNotExist) {
		return // sysfs does not have the device: the attempts to read its files would cost more than the rest of a scan.
	}
	i.readPlace(g)
	if err == nil && g.PCIeRoot != "" && g.Class != "" {
		i.places[path] = *g
	}
}

func (i *Inventory) readPlace(g *gpu.GPU) {
	sys := deviceattribute.WithFSFromRoot(i.o.SysRoot)
	if a, err := deviceattribute.GetPCIeRootAttributeByPCIBusID(g.PCIAddress, sys); err == nil && a.Value.StringValue != nil {
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
