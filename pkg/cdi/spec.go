// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"
	"tags.cncf.io/container-device-interface/specs-go"

	"gpu-dra-driver/internal/memorylimit"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/gpu"
)

// Class is the class of every CDI device of this driver; the vendor is "k8s." and the driver's name.
const Class = "claim"

func Vendor(driver string) string { return "k8s." + driver }

// Annotations of a spec: the plan as JSON, the boot of its effects, and the checksum of both.
const (
	planAnnotation = "prepared-claim"
	bootAnnotation = "boot"
	sumAnnotation  = "sha256"
)

// Edits are the container edits of a claim.
type Edits struct {
	// Common applies to each container with any device of the claim.
	Common specs.ContainerEdits
	// Devices are in the order of the plan's devices.
	Devices []specs.ContainerEdits
}

// DeviceName is the CDI name of the plan's i-th device. It contains the share, because two requests of a claim can have
// shares of one device.
func DeviceName(p plan.Plan, i int) string {
	d := p.Devices[i]
	name := p.Claim.UID + "-" + d.Name
	if d.ShareID != "" {
		name += "-" + d.ShareID
	}
	return name
}

// DeviceID is the qualified name that the kubelet passes to the runtime.
func DeviceID(driver string, p plan.Plan, i int) string {
	return parser.QualifiedName(Vendor(driver), Class, DeviceName(p, i))
}

// Spec builds the claim's spec for a boot, in the lowest possible CDI version.
func Spec(driver string, p plan.Plan, boot string, edits Edits) (*specs.Spec, error) {
	if len(edits.Devices) != len(p.Devices) {
		return nil, fmt.Errorf("%d devices have %d container edits", len(p.Devices), len(edits.Devices))
	}
	text, err := json.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("encode the plan: %w", err)
	}
	spec := &specs.Spec{
		Kind: Vendor(driver) + "/" + Class,
		Annotations: map[string]string{
			Vendor(driver) + "/" + planAnnotation: string(text), Vendor(driver) + "/" + bootAnnotation: boot,
			Vendor(driver) + "/" + sumAnnotation: checksum(string(text), boot),
		},
		ContainerEdits: edits.Common,
	}
	at := map[string]int{}
	for i := range p.Devices {
		name := DeviceName(p, i)
		if len(edits.Devices[i].DeviceNodes) == 0 {
			return nil, fmt.Errorf("device %s has no device node for a container", p.Devices[i].Name)
		}
		if p.Continues(i) {
			join(&spec.Devices[at[name]].ContainerEdits, edits.Devices[i])
			continue
		}
		if n, seen := at[name]; seen { // With admin access two requests can name a device; one CDI device serves both.
			shared := &spec.Devices[n].ContainerEdits
			shared.Env = unique(shared.Env, identity(p, i))
			shared.Mounts = unique(shared.Mounts, edits.Devices[i].Mounts)
			continue
		}
		at[name] = len(spec.Devices)
		if err := parser.ValidateDeviceName(name); err != nil {
			return nil, fmt.Errorf("device %s: %w", p.Devices[i].Name, err)
		}
		one := edits.Devices[i]
		one.Env = slices.Concat(one.Env, identity(p, i))
		spec.Devices = append(spec.Devices, specs.Device{Name: name, ContainerEdits: one})
	}
	if spec.Version, err = specs.MinimumRequiredVersion(spec); err != nil {
		return nil, fmt.Errorf("find the CDI version: %w", err)
	}
	return spec, validate(spec)
}

// identity is the variable with the UUID of a device, or of each GPU of a group. Its name contains the device, so
// another claim of the container can only set it to the same value.
func identity(p plan.Plan, i int) []string {
	d := p.Devices[i]
	uuids := []string{d.UUID}
	if d.Kind == gpu.KindMIG {
		uuids[0] = d.Partition.UUID
	}
	for i++; i < len(p.Devices) && p.Continues(i); i++ {
		uuids = append(uuids, p.Devices[i].UUID)
	}
	if uuids[0] == "" {
		return nil // An adopted partition that no scan has found yet.
	}
	name := strings.NewReplacer("-", "_", "/", "_").Replace(d.Request + "_" + d.Name)
	return []string{envUUID + strings.ToUpper(name) + "=" + strings.Join(uuids, ",")}
}

// join adds the edits of another GPU to a group's, without duplicate nodes, mounts and hooks.
func join(group *specs.ContainerEdits, one specs.ContainerEdits) {
	group.Env = unique(group.Env, one.Env)
	group.DeviceNodes = unique(group.DeviceNodes, one.DeviceNodes)
	group.Mounts = unique(group.Mounts, one.Mounts)
	group.Hooks = unique(group.Hooks, one.Hooks)
	group.AdditionalGIDs = unique(group.AdditionalGIDs, one.AdditionalGIDs)
}

func unique[T any](have, more []T) []T {
	out := slices.Clip(have)
	for _, x := range more {
		if !slices.ContainsFunc(out, func(y T) bool { return reflect.DeepEqual(x, y) }) {
			out = append(out, x)
		}
	}
	return out
}

// validate finds the errors for which a runtime would refuse the spec and the pod would never start.
func validate(spec *specs.Spec) error {
	errs := []error{parser.ValidateVendorName(strings.TrimSuffix(spec.Kind, "/"+Class)),
		validateEdits("the claim", spec.ContainerEdits)}
	for _, d := range spec.Devices {
		errs = append(errs, validateEdits("device "+d.Name, d.ContainerEdits))
	}
	return errors.Join(errs...)
}

func validateEdits(what string, edits specs.ContainerEdits) error {
	if err := (&cdi.ContainerEdits{ContainerEdits: &edits}).Validate(); err != nil {
		return fmt.Errorf("container edits of %s: %w", what, err)
	}
	return nil
}

// Encode encodes a spec; equal specs have equal bytes.
func Encode(spec *specs.Spec) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(spec); err != nil {
		return nil, fmt.Errorf("encode the CDI spec: %w", err)
	}
	return b.Bytes(), nil
}

// checksum is the checksum of a spec's plan and boot. A damaged plan could name another device.
func checksum(text, boot string) string {
	sum := sha256.Sum256([]byte(boot + "\n" + text))
	return hex.EncodeToString(sum[:])
}

// PlanOf reads the plan and the boot from a spec's bytes. The boot is empty if the spec has none. Specs of versions
// before the checksum have none.
func PlanOf(driver string, data []byte) (p plan.Plan, boot string, err error) {
	var spec specs.Spec
	if err := json.Unmarshal(data, &spec); err != nil {
		return plan.Plan{}, "", errors.New("the CDI spec is not JSON")
	}
	text, ok := spec.Annotations[Vendor(driver)+"/"+planAnnotation]
	if !ok {
		return plan.Plan{}, "", errors.New("the CDI spec contains no plan")
	}
	boot = spec.Annotations[Vendor(driver)+"/"+bootAnnotation]
	if sum, ok := spec.Annotations[Vendor(driver)+"/"+sumAnnotation]; ok && sum != checksum(text, boot) {
		return plan.Plan{}, "", errors.New("the checksum of the CDI spec's plan does not match")
	}
	if err := json.Unmarshal([]byte(text), &p); err != nil {
		return plan.Plan{}, "", errors.New("the CDI spec's plan is not readable")
	}
	if p.Claim.UID == "" {
		return plan.Plan{}, "", errors.New("the CDI spec's plan contains no claim")
	}
	return p, boot, nil
}

// CompareNodes returns an error with the differences, unless an encoded spec has the same devices with the same device
// nodes as now. Without common it compares only the nodes of devices, and not those of each container. Two versions of
// the driver can differ in the rest.
func CompareNodes(data []byte, now *specs.Spec, common bool) error {
	old := new(specs.Spec)
	if err := json.Unmarshal(data, old); err != nil {
		return errors.New("the CDI spec is not JSON")
	}
	before, after := nodesOf(old, common), nodesOf(now, common)
	missing := func(all, from []string) string {
		return strings.Join(slices.DeleteFunc(slices.Clone(all), func(n string) bool {
			return slices.Contains(from, n)
		}), ", ")
	}
	gone, added := missing(before, after), missing(after, before)
	if gone == "" && added == "" {
		return nil
	}
	return fmt.Errorf("its devices have other numbers now: it contains [%s], and the kernel has [%s]", gone, added)
}

// nodesOf lists the device nodes of a spec, each with its CDI device.
func nodesOf(spec *specs.Spec, common bool) (nodes []string) {
	add := func(device string, edits specs.ContainerEdits) {
		for _, n := range edits.DeviceNodes {
			nodes = append(nodes, fmt.Sprintf("%s %s %d:%d%s", n.Path, n.Type, n.Major, n.Minor, device))
		}
	}
	if common {
		add("", spec.ContainerEdits)
	}
	for _, d := range spec.Devices {
		add(" of "+d.Name, d.ContainerEdits)
	}
	return nodes
}

const containerTopology = "/run/nvidia/nccl-topology.xml"

// Environment of containers, beside that of a sharing strategy. Names without DRA belong to CUDA and NCCL.
const (
	envUUID           = "NVIDIA_DRA_UUID_" // A prefix: the request and the device follow.
	envStrategy       = "NVIDIA_DRA_SHARING_STRATEGY"
	envShare          = "NVIDIA_DRA_SHARE_MEMORY_MIB"
	envMemory         = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
	envThreads        = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
	envVisibleDevices = "CUDA_VISIBLE_DEVICES"
	envTopologyFile   = "NCCL_TOPO_FILE"
)

// Paths are files of the node that the edits of devices name, and a share.
type Paths struct {
	// MPS holds a directory for each MPS daemon.
	MPS string
	// LimitHook is the hook that limits a container's memory, LimitRequests the directory of its requests.
	LimitHook, LimitRequests string
	// Share is the share's ID, if the hook of another device of the claim is the same without it.
	Share string
	// Topology is the claim's file for NCCL.
	Topology string
}

// hookSeconds limits the hook, which itself waits for less.
const hookSeconds = 30

// DeviceEdits adds the parts of a claim to a GPU's edits: its share, the MPS daemon and the topology of the
// request's GPUs.
func DeviceEdits(edits specs.ContainerEdits, claim plan.Claim, d plan.Device, paths Paths) specs.ContainerEdits {
	if d.Admin {
		return edits
	}
	edits.Env, edits.Mounts = slices.Clone(edits.Env), slices.Clone(edits.Mounts)
	env := func(name, format string, args ...any) {
		edits.Env = append(edits.Env, name+"="+fmt.Sprintf(format, args...))
	}
	if d.Sharing.Strategy != "" {
		env(envStrategy, "%s", d.Sharing.Strategy)
	}
	if d.Partial() {
		env(envShare, "%d", d.Share.UsableBytes>>20)
	}
	if d.Sharing.ContainerLimit > 0 {
		seconds := hookSeconds
		edits.Hooks = append(slices.Clone(edits.Hooks), &specs.Hook{
			HookName: cdi.CreateRuntimeHook, Path: paths.LimitHook, Timeout: &seconds,
			Args: memorylimit.Request{
				Claim:    claim.String(),
				ClaimUID: claim.UID,
				Device:   d.Name,
				Share:    paths.Share,
				Address:  d.PCIAddress,
				UUID:     d.UUID,
				Bytes:    d.Sharing.ContainerLimit,
			}.Args(paths.LimitRequests),
		})
	}
	by := sharing.Of(d.Sharing.Strategy)
	edits.Env = append(edits.Env, by.Env...)
	if limit := d.Sharing.MemoryLimit; limit != nil {
		env(envMemory, "0=%dM", *limit>>20)
	}
	if d.Sharing.ActiveThreadPercentage > 0 {
		env(envThreads, "%d", d.Sharing.ActiveThreadPercentage)
	}
	for _, m := range by.Mounts {
		if m.ContainerPath == sharing.SharedMemory && d.Sharing.OwnSharedMemory {
			continue
		}
		edits.Mounts = append(edits.Mounts, bind(filepath.Join(paths.MPS, d.Name, m.Dir), m.ContainerPath, m.Access))
	}
	if d.TopologyEnv.VisibleDevices != "" {
		env(envVisibleDevices, "%s", d.TopologyEnv.VisibleDevices)
	}
	if d.TopologyEnv.NCCLTopology != "" {
		env(envTopologyFile, "%s", containerTopology)
		edits.Mounts = append(edits.Mounts, bind(paths.Topology, containerTopology, "ro"))
	}
	return edits
}

func bind(host, container, access string) *specs.Mount {
	return &specs.Mount{HostPath: host, ContainerPath: container, Options: []string{access, "nosuid", "nodev", "bind"}}
}
