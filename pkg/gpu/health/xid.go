// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"cmp"
	"fmt"
	"slices"
)

// Class is the immediate action of NVIDIA's catalogue for an XID.
type Class string

const (
	// Application errors end a program. The GPU works.
	Application Class = "application"
	// Ignorable errors need no action.
	Ignorable Class = "ignore"
	// NeedsReset errors need a reset of the GPU, NeedsReboot errors a reboot of the node.
	NeedsReset  Class = "reset"
	NeedsReboot Class = "reboot"
	// Workflow errors need a diagnosis by a person.
	Workflow Class = "workflow"
	// ActionChanged reports that the driver has another recovery action. A poll reads it.
	ActionChanged Class = "recovery action changed"
	// Unlisted errors are not in the catalogue.
	Unlisted Class = ""
)

// consequences and remedies are for users. A remedy has no period at the end.
var consequences, remedies = map[Class]string{
	Application:   "the program's fault",
	Ignorable:     "no action is needed",
	NeedsReset:    "the GPU needs a reset",
	NeedsReboot:   "the node needs a reboot",
	Workflow:      "the cause needs a diagnosis",
	ActionChanged: "the driver recommends another action than before",
	Unlisted:      "not in NVIDIA's catalogue",
}, map[Class]string{
	Application: "restart the program; its log can show where it failed",
	NeedsReset:  "delete the pod to run it on another GPU",
	NeedsReboot: "delete the pod to run it on another node",
	Workflow:    "look the XID up in NVIDIA's catalogue",
	Unlisted:    "read the NVRM messages in the node's kernel log",
}

// XID is an error code of NVIDIA's driver.
type XID struct {
	Code uint64
	// Name is in plain English, for people.
	Name  string
	Class Class
}

// OffTheBus is the XID of a GPU that has fallen off the bus.
const OffTheBus = 79

// manyErrorsXID is that of a high rate of corrected errors.
const manyErrorsXID = 92

// XIDs are the XIDs of NVIDIA's catalogue (October 2025) that drivers report, by code.
// https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html
var XIDs = []XID{
	{8, "GPU stopped processing", Application},
	{11, "invalid push buffer stream", Application},
	{13, "graphics engine exception", Application},
	{25, "illegal push buffer stream", Application},
	{31, "GPU memory page fault", Application},
	{32, "corrupted push buffer stream", Application},
	{37, "driver firmware error", Ignorable},
	{38, "driver firmware watchdog", Ignorable},
	{39, "copy engine 0 exception", Application},
	{40, "copy engine 1 exception", Application},
	{41, "copy engine 2 exception", Application},
	{43, "program ended after a software fault", Ignorable},
	{44, "graphics engine fault during a context switch", Ignorable},
	{45, "program removed after an earlier error or a kill", Workflow},
	{46, "GPU timeout", NeedsReset},
	{48, "double-bit ECC error", Workflow},
	{54, "auxiliary power not connected", Workflow},
	{60, "video processor exception", Application},
	{62, "microcontroller halt", NeedsReset},
	{63, "memory row remapped", Ignorable},
	{64, "memory row not remapped", NeedsReset},
	{66, "illegal access by the driver", Ignorable},
	{67, "illegal access by the driver's firmware", Ignorable},
	{68, "video decoder 0 exception", Application},
	{69, "graphics engine class error", Application},
	{70, "copy engine 3 exception", Application},
	{71, "copy engine 4 exception", Application},
	{72, "copy engine 5 exception", Application},
	{74, "NVLink error", Workflow},
	{75, "copy engine 6 exception", Application},
	{76, "copy engine 7 exception", Application},
	{77, "copy engine 8 exception", Application},
	{OffTheBus, "GPU off the bus", NeedsReboot},
	{80, "corrupted data sent to the GPU", Application},
	{82, "JPEG engine 0 exception", Application},
	{83, "video decoder 1 exception", Application},
	{84, "video decoder 2 exception", Application},
	{85, "copy engine 9 exception", Application},
	{86, "optical flow engine 0 exception", Application},
	{88, "video decoder 3 exception", Application},
	{89, "video decoder 4 exception", Application},
	{manyErrorsXID, "many single-bit ECC errors", Ignorable},
	{93, "InfoROM wear limit", Ignorable},
	{94, "contained memory error", Application},
	{95, "uncontained memory error", NeedsReset},
	{96, "video decoder 5 exception", Application},
	{97, "video decoder 6 exception", Application},
	{98, "video decoder 7 exception", Application},
	{99, "JPEG engine 1 exception", Application},
	{100, "JPEG engine 2 exception", Application},
	{101, "JPEG engine 3 exception", Application},
	{102, "JPEG engine 4 exception", Application},
	{103, "JPEG engine 5 exception", Application},
	{104, "JPEG engine 6 exception", Application},
	{105, "JPEG engine 7 exception", Application},
	{106, "SMBus test message", Ignorable},
	{107, "silent SMBus test message", Ignorable},
	{109, "context switch timeout", NeedsReset},
	{110, "security fault", NeedsReset},
	{119, "timeout of the GPU's system processor", NeedsReset},
	{120, "error of the GPU's system processor", NeedsReset},
	{121, "corrected error of the link to the CPU", Ignorable},
	{126, "copy engine 10 exception", Application},
	{127, "copy engine 11 exception", Application},
	{128, "copy engine 12 exception", Application},
	{129, "copy engine 13 exception", Application},
	{130, "copy engine 14 exception", Application},
	{131, "copy engine 15 exception", Application},
	{132, "copy engine 16 exception", Application},
	{133, "copy engine 17 exception", Application},
	{134, "copy engine 18 exception", Application},
	{135, "copy engine 19 exception", Application},
	{136, "link training failure", NeedsReset},
	{137, "NVLink privilege error", Ignorable},
	{139, "optical flow engine 1 exception", Application},
	{140, "unrecovered ECC error", NeedsReset},
	{141, "CUDA fast path error", Ignorable},
	{142, "video encoder 3 exception", Workflow},
	{143, "GPU initialization error", NeedsReset},
	{144, "NVLink SAW error", Workflow},
	{145, "NVLink RLW error", Workflow},
	{146, "NVLink TLW error", Workflow},
	{147, "NVLink TREX error", Workflow},
	{148, "NVLink NVLPW_CTRL error", Workflow},
	{149, "NVLink NETIR error", Workflow},
	{150, "NVLink MSE error", Workflow},
	{151, "key rotation error", NeedsReboot},
	{152, "deep learning accelerator: memory error", Ignorable},
	{153, "deep learning accelerator: timeout", Ignorable},
	{154, "recovery action changed", ActionChanged},
	{155, "NVLink error defined by software", NeedsReset},
	{156, "resource retired", NeedsReset},
	{157, "resource not retired", Ignorable},
	{158, "GPU fatal timeout", NeedsReset},
	{159, "error of the CPU's coherent interface", Workflow},
	{160, "channel retired", Ignorable},
	{161, "channel not retired", Ignorable},
}

// XIDOf returns an XID by its code. One that is not in the catalogue has the class Unlisted.
func XIDOf(code uint64) XID {
	i, ok := slices.BinarySearchFunc(XIDs, code, func(x XID, code uint64) int { return cmp.Compare(x.Code, code) })
	if !ok {
		return XID{Code: code, Name: "unknown error"}
	}
	return XIDs[i]
}

func (x XID) String() string { return fmt.Sprintf("XID %d, %s", x.Code, x.Name) }

// Text returns the XID with its consequence, for people. alone means that one claim has the device. healthy means that
// the GPU has no faults.
func (x XID) Text(alone, healthy bool) string {
	text := consequences[x.Class]
	if x.Class == Application && !alone {
		text = "the fault of a program, perhaps of another pod"
	}
	if x.Class == Application && healthy {
		text += "; the GPU is healthy"
	}
	return x.String() + ": " + text
}

// Remedy is the next step of a pod's owner, or "" if there is none.
func (x XID) Remedy() string { return remedies[x.Class] }

// Reported means that pods with the device are notified.
func (x XID) Reported() bool { return x.Remedy() != "" }

// State returns the state that the XID gives to a GPU whose driver reports no recovery action, or "".
func (x XID) State() string {
	switch {
	case x.Code == OffTheBus:
		return Lost
	case x.Class == NeedsReset:
		return Reset
	case x.Class == NeedsReboot:
		return Reboot
	}
	return ""
}

// Settings are an administrator's changes of the catalogue.
type Settings struct {
	// Ignore lists XIDs that change nothing and are not reported to pods.
	Ignore []uint64
	// Taint lists XIDs that give a GPU the state Named, if they give it no other.
	Taint []uint64
}
