// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package nodelabels builds the labels of a node from its published GPUs. Names and values follow NVIDIA's feature
// discovery, so existing node selectors match.
package nodelabels

import (
	"cmp"
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/dynamic-resource-allocation/deviceattribute"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/api/deviceclass/v1beta1"
	"gpu-dra-driver/pkg/claim/sharing"
	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/wire"
)

// labelPrefix begins the labels of feature discovery.
const labelPrefix = "nvidia.com/"

// unusual matches the characters that feature discovery removes from product names.
var unusual = regexp.MustCompile(`[^A-Za-z0-9-_. ]`)

// ranks order the kinds of devices of a GPU by how many of its facts they have.
var ranks = map[gpu.Kind]int{gpu.KindMIG: 1, gpu.KindMonitor: 2, gpu.KindGPU: 3}

// device is a published device.
type device struct {
	resourceapi.Device
	pool.Kind
}

// node holds the devices that labels are made of.
type node struct {
	// boards has one device for each GPU, by PCI address, which unlike a UUID is part of a pool.Shape.
	boards map[string]device
	// partitions are an administrator's, by profile; those that are created for claims have no UUID.
	partitions map[string][]device
	// modes and machines come from whole GPUs and monitor devices; described means that there is one.
	modes, machines map[string]bool
	described       bool
	// capable means that a GPU supports MIG.
	capable bool
}

func read(p pool.Pool) node {
	n := node{
		boards:     map[string]device{},
		partitions: map[string][]device{},
		modes:      map[string]bool{},
		machines:   map[string]bool{},
	}
	for published, kind := range p.Devices() {
		d := device{published, kind}
		address := pool.Text(published, deviceattribute.StandardDeviceAttributePCIBusID)
		if address == "" {
			continue // A group.
		}
		if before := n.boards[address]; ranks[kind.Type] > ranks[before.Type] {
			n.boards[address] = d
		}
		n.capable = n.capable || kind.Type == gpu.KindMIG || ptr.Deref(published.Attributes["migCapable"].BoolValue,
			false)
		switch kind.Type {
		case gpu.KindGPU, gpu.KindMonitor:
			n.described = true
			for name, values := range map[resourceapi.QualifiedName]map[string]bool{"mode": n.modes,
				"machine": n.machines} {
				// Plugins of earlier versions publish them of monitor devices alone.
				if text := pool.Text(published, name); text != "" || kind.Type == gpu.KindMonitor {
					values[text] = true
				}
			}
		case gpu.KindMIG:
			if _, exists := published.Attributes["uuid"]; exists {
				n.partitions[kind.Profile] = append(n.partitions[kind.Profile], d)
			}
		}
	}
	return n
}

// Of returns a node's labels. A node with several models gets the labels of the most frequent one.
func Of(p pool.Pool, driver string) map[string]string {
	n := read(p)
	if len(n.boards) == 0 {
		return nil
	}
	models := map[string][]device{}
	for _, address := range slices.Sorted(maps.Keys(n.boards)) {
		d := n.boards[address]
		models[d.Product] = append(models[d.Product], d)
	}
	names := slices.SortedFunc(maps.Keys(models), func(a, b string) int {
		return cmp.Or(cmp.Compare(len(models[b]), len(models[a])), cmp.Compare(a, b))
	})
	model := models[names[0]]
	slices.SortStableFunc(model, func(a, b device) int { return cmp.Compare(ranks[b.Type], ranks[a.Type]) })
	l := labels{}
	l[presentLabel] = "true"
	l.put("mig.capable", strconv.FormatBool(n.capable))
	if n.capable {
		// With this driver partitions are separate devices, which is the meaning of "mixed".
		l.put("mig.strategy", "mixed")
	}
	l.board(model)
	for profile, devices := range n.partitions {
		l.profile(profile, devices)
	}
	l.driver(model[0].Device)
	if n.described {
		l.put("gpu.mode", only(n.modes))
		l.put("gpu.machine", sanitized(only(n.machines)))
	}
	l.put("gpu.clique", clique(p))
	most := island(model)
	l[driver+"/nvlink-enabled"] = strconv.FormatBool(most > 1)
	if most > 1 {
		l[driver+"/nvlink-gpus-per-island"] = strconv.Itoa(most)
	}
	maps.DeleteFunc(l, func(key, value string) bool {
		return len(validation.IsQualifiedName(key))+len(validation.IsValidLabelValue(value)) > 0
	})
	return l
}

// only returns the only value of all GPUs, and "unknown" without one.
func only(values map[string]bool) string {
	if len(values) != 1 || values[""] {
		return "unknown"
	}
	return slices.Collect(maps.Keys(values))[0]
}

// clique returns the NVLink clique of the node's GPUs, or "" if there are several.
func clique(p pool.Pool) string {
	found := map[string]bool{}
	for _, s := range p.Slices {
		if s.Clique != "" {
			found[s.Clique] = true
		}
	}
	if len(found) != 1 {
		return ""
	}
	return only(found)
}

// sanitized is a text as feature discovery writes it into a label.
func sanitized(text string) string {
	return strings.Join(strings.Fields(unusual.ReplaceAllString(text, "")), "-")
}

type labels map[string]string

func (l labels) put(name, value string) {
	if value != "" {
		l[labelPrefix+name] = value
	}
}

// resource adds the labels of GPUs, or of partitions with one profile. A GPU that an administrator partitioned is
// shared with none, so it has 0 replicas.
func (l labels) resource(name, product string, devices []device) {
	d := devices[0]
	replicas, strategy := shared(d.Device)
	if name == "gpu" && d.Type != gpu.KindGPU {
		replicas, strategy = 0, "none"
	}
	if replicas > 1 && !ptr.Deref(d.Attributes["renameByDefault"].BoolValue, false) {
		product += "-SHARED"
	}
	l.put(name+".product", product)
	l.put(name+".count", strconv.Itoa(len(devices)))
	l.put(name+".replicas", strconv.Itoa(replicas))
	l.put(name+".sharing-strategy", strategy)
	if memory := d.Capacity["memory"]; memory.Value.Sign() > 0 && (name != "gpu" || d.Type != gpu.KindMIG) {
		l.put(name+".memory", strconv.FormatInt(memory.Value.Value()>>20, 10))
	}
}

// board adds the labels of one model's GPUs.
func (l labels) board(model []device) {
	d := model[0]
	l.resource("gpu", sanitized(d.Product), model)
	l.put("mps.capable",
		strconv.FormatBool(l[labelPrefix+"gpu.sharing-strategy"] == sharing.Of(v1beta1.StrategyMPS).Isolation))
	if parts := knownVersion(d.Device, "cudaComputeCapability"); len(parts) == 3 {
		l.put("gpu.family", cmp.Or(families[parts[0]+"."+parts[1]], families[parts[0]], "undefined"))
		l.put("gpu.compute.major", parts[0])
		l.put("gpu.compute.minor", parts[1])
	}
	l.put("vgpu.present", strconv.FormatBool(slices.Contains(guests, pool.Text(d.Device, "brand"))))
}

// guests are the brands of vGPUs.
var guests = []string{"Grid", "NvidiaVApps", "NvidiaVPC", "NvidiaVCS", "NvidiaVWS"}

// profile adds the labels of an administrator's partitions with one profile.
func (l labels) profile(profile string, devices []device) {
	d := devices[0]
	profile = strings.ReplaceAll(profile, "+", ".")
	name := "mig-" + profile
	l.resource(name, sanitized(d.Product)+"-MIG-"+profile, devices)
	slices, _, _ := strings.Cut(profile, "g.")
	l.put(name+".slices.gi", slices)
	l.put(name+".slices.ci", slices) // Others are not published.
	for label, capacity := range map[string]resourceapi.QualifiedName{
		"multiprocessors": "multiprocessors", "engines.copy": "copyEngines", "engines.decoder": "decoders",
		"engines.encoder": "encoders", "engines.jpeg": "jpegEngines", "engines.ofa": "ofaEngines",
	} {
		if c, ok := d.Capacity[capacity]; ok {
			l.put(name+"."+label, strconv.FormatInt(c.Value.Value(), 10))
		}
	}
}

// shared returns the number of default shares of a GPU and their sharing strategy.
func shared(d resourceapi.Device) (replicas int, strategy string) {
	memory := d.Capacity["memory"]
	if memory.RequestPolicy == nil || memory.RequestPolicy.Default == nil || memory.RequestPolicy.Default.Value() <= 0 {
		return 1, "none"
	}
	replicas = max(1, int(memory.Value.Value()/memory.RequestPolicy.Default.Value()))
	if replicas == 1 {
		return 1, "none"
	}
	return replicas, pool.Text(d, "isolation")
}

// driver adds the versions of the kernel driver and of CUDA.
func (l labels) driver(d resourceapi.Device) {
	raw := pool.Text(d, "driverVersionRaw")
	if parts := strings.Split(raw, "."); len(parts) == 2 || len(parts) == 3 {
		parts = append(parts, "")
		for i, names := range [][]string{
			{"cuda.driver-version.major", "cuda.driver.major"}, {"cuda.driver-version.minor", "cuda.driver.minor"},
			{"cuda.driver-version.revision", "cuda.driver.rev"},
		} {
			for _, name := range names {
				l[labelPrefix+name] = parts[i] // With a two-part version the revision label is present and empty.
			}
		}
		l.put("cuda.driver-version.full", raw)
	}
	if parts := knownVersion(d, "cudaDriverVersion"); len(parts) == 3 {
		l.put("cuda.runtime-version.major", parts[0])
		l.put("cuda.runtime.major", parts[0])
		l.put("cuda.runtime-version.minor", parts[1])
		l.put("cuda.runtime.minor", parts[1])
		l.put("cuda.runtime-version.full", parts[0]+"."+parts[1])
	}
}

// knownVersion returns the three parts of a version, nil if it is not known.
func knownVersion(d resourceapi.Device, name resourceapi.QualifiedName) []string {
	text := pool.Text(d, name)
	if text == wire.UnknownVersion {
		return nil
	}
	return strings.Split(text, ".")
}

// island returns the size of the largest NVLink island.
func island(model []device) int {
	members, most := map[string]int{}, 0
	for _, d := range model {
		if group := pool.Text(d.Device, "nvlinkGroup"); group != "" {
			members[group]++
			most = max(most, members[group])
		}
	}
	return most
}

// families are the architectures of compute capabilities, as named by feature discovery.
var families = map[string]string{
	"5": "maxwell", "6": "pascal",
	"7": "turing", "7.0": "volta", "7.1": "volta", "7.2": "volta", "7.3": "volta", "7.4": "volta",
	"8": "ampere", "8.9": "ada-lovelace", "9": "hopper", "10": "blackwell", "12": "blackwell",
}

// Written returns the annotation of a node with the labels and values that the controller of a driver wrote. A label
// with another value belongs to another writer. Each driver has its own, so that two of them do not fight over labels.
func Written(driver string) string {
	if driver == "gpu.nvidia.com" {
		return "gpu-dra-driver/labels" // As in older versions.
	}
	return driver + "/labels"
}

// written returns the labels that the driver's controller wrote. ok is false if the annotation is unreadable: it proves
// nothing, so no label counts as ours.
func written(annotations map[string]string, driver string) (mine map[string]string, ok bool) {
	text, present := annotations[Written(driver)]
	if !present {
		return nil, true
	}
	if json.Unmarshal([]byte(text), &mine) != nil || mine == nil {
		return nil, false
	}
	return mine, true
}

// presentLabel is a label that Plan never removes, because the plugin's DaemonSet selects nodes by it. On a node that
// publishes nothing for a while the plugin would end, and could neither publish again nor unprepare claims.
const presentLabel = labelPrefix + "gpu.present"

// Change holds the values to write to a node; nil removes the key. An empty Change writes nothing.
type Change struct {
	Labels, Annotations map[string]*string
}

// None reports whether the Change is empty.
func (c Change) None() bool { return len(c.Labels)+len(c.Annotations) == 0 }

// Plan compares a node's labels and annotations with the labels that a driver wants. It changes and removes only labels
// that the driver's controller wrote, so that two writers never overwrite each other in turns.
func Plan(has, annotations, want map[string]string, driver string) Change {
	mine, readable := written(annotations, driver)
	change := Change{Labels: map[string]*string{}, Annotations: map[string]*string{}}
	keeps := map[string]string{}
	for key, value := range want {
		now, present := has[key]
		last, ours := mine[key]
		if present && (!ours || now != value && now != last) {
			continue // It belongs to another writer.
		}
		keeps[key] = value
		if !present || now != value {
			change.Labels[key] = &value
		}
	}
	for key, last := range mine {
		now, present := has[key]
		if _, wanted := want[key]; wanted || !present || now != last {
			continue
		}
		if key == presentLabel {
			keeps[key] = last
		} else {
			change.Labels[key] = nil
		}
	}
	if readable && maps.Equal(keeps, mine) {
		return change
	}
	if len(keeps) > 0 {
		text, _ := json.Marshal(keeps) // Strings always encode, and encoding/json sorts keys.
		change.Annotations[Written(driver)] = new(string(text))
	} else if _, present := annotations[Written(driver)]; present {
		change.Annotations[Written(driver)] = nil
	}
	return change
}

// Gone returns the change that removes all labels that the driver's controller wrote, and their annotation, after the
// driver was uninstalled. Labels with the value of another writer stay.
func Gone(has, annotations map[string]string, driver string) Change {
	mine, _ := written(annotations, driver)
	change := Change{Labels: map[string]*string{}, Annotations: map[string]*string{}}
	for key, last := range mine {
		if now, present := has[key]; present && now == last {
			change.Labels[key] = nil
		}
	}
	if _, present := annotations[Written(driver)]; present {
		change.Annotations[Written(driver)] = nil
	}
	return change
}

// Concerns reports whether Plan reads a label or annotation with this key.
func Concerns(key, driver string) bool {
	return strings.HasPrefix(key, labelPrefix) || strings.HasPrefix(key, driver+"/") || key == Written(driver)
}

// Patch encodes the change as a JSON merge patch for a node at a resource version.
func (c Change) Patch(resourceVersion string) []byte {
	metadata := map[string]any{"resourceVersion": resourceVersion}
	for name, values := range map[string]map[string]*string{"labels": c.Labels, "annotations": c.Annotations} {
		if len(values) > 0 {
			metadata[name] = values
		}
	}
	data, _ := json.Marshal(map[string]any{"metadata": metadata}) // Strings and nil always encode.
	return data
}

func (c Change) Keys() []string { return slices.Sorted(maps.Keys(c.Labels)) }
