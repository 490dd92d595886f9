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
	// application errors end a program. The GPU works.
	application Class = "application"
	// ignorable errors need no action.
	ignorable Class = "ignore"
	// needsReset errors need a reset of the GPU, needsReboot errors a reboot of the node.
	needsReset  Class = "reset"
	needsReboot Class = "reboot"
	// workflow errors need a diagnosis by a person.
	workflow Class = "workflow"
	// actionChanged reports that the driver has another recovery action. A poll reads it.
	actionChanged Class = "recovery action changed"
	// Unlisted errors are not in the catalogue.
	Unlisted Class = ""
)

// consequences and remedies are for users. A remedy has no period at the end.
var consequences, remedies = map[Class]string{
	application:   "the program's fault",
	ignorable:     "no action is needed",
	needsReset:    "the GPU needs a reset",
	needsReboot:   "the node needs a reboot",
	workflow:      "the cause needs a diagnosis",
	actionChanged: "the driver recommends another action than before",
	Unlisted:      "not in NVIDIA's catalogue",
}, map[Class]string{
	application: "restart the program; its log can show where it failed",
	needsReset:  "delete the pod to run it on another GPU",
	needsReboot: "delete the pod to run it on another node",
	workflow:    "look the XID up in NVIDIA's catalogue",
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

// manyErrorsXID reports a high rate of corrected errors.
const manyErrorsXID = 92

// XIDs are the XIDs of NVIDIA's catalogue (October 2025) that drivers report, by code.
// https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html
var XIDs = []XID{
	{8, "GPU stopped processing", application},
	{11, "invalid push buffer stream", application},
	{13, "graphics engine exception", application},
	{25, "illegal push buffer stream", application},
	{31, "GPU memory page fault", application},
	{32, "corrupted push buffer stream", application},
	{37, "driver firmware error", ignorable},
	{38, "driver firmware watchdog", ignorable},
	{39, "copy engine 0 exception", application},
	{40, "copy engine 1 exception", application},
	{41, "copy engine 2 exception", application},
	{43, "program ended after a software fault", ignorable},
	{44, "graphics engine fault during a context switch", ignorable},
	{45, "program removed after an earlier error or a kill", workflow},
	{46, "GPU timeout", needsReset},
	{48, "double-bit ECC error", workflow},
	{54, "auxiliary power not connected", workflow},
	{60, "video processor exception", application},
	{62, "microcontroller halt", needsReset},
	{63, "memory row remapped", ignorable},
	{64, "memory row not remapped", needsReset},
	{66, "illegal access by the driver", ignorable},
	{67, "illegal access by the driver's firmware", ignorable},
	{68, "video decoder 0 exception", application},
	{69, "graphics engine class error", application},
	{70, "copy engine 3 exception", application},
	{71, "copy engine 4 exception", application},
	{72, "copy engine 5 exception", application},
	{74, "NVLink error", workflow},
	{75, "copy engine 6 exception", application},
	{76, "copy engine 7 exception", application},
	{77, "copy engine 8 exception", application},
	{OffTheBus, "GPU off the bus", needsReboot},
	{80, "corrupted data sent to the GPU", application},
	{82, "JPEG engine 0 exception", application},
	{83, "video decoder 1 exception", application},
	{84, "video decoder 2 exception", application},
	{85, "copy engine 9 exception", application},
	{86, "optical flow engine 0 exception", application},
	{88, "video decoder 3 exception", application},
	{89, "video decoder 4 exception", application},
	{manyErrorsXID, "many single-bit ECC errors", ignorable},
	{93, "InfoROM wear limit", ignorable},
	{94, "contained memory error", application},
	{95, "uncontained memory error", needsReset},
	{96, "video decoder 5 exception", application},
	{97, "video decoder 6 exception", application},
	{98, "video decoder 7 exception", application},
	{99, "JPEG engine 1 exception", application},
	{100, "JPEG engine 2 exception", application},
	{101, "JPEG engine 3 exception", application},
	{102, "JPEG engine 4 exception", application},
	{103, "JPEG engine 5 exception", application},
	{104, "JPEG engine 6 exception", application},
	{105, "JPEG engine 7 exception", application},
	{106, "SMBus test message", ignorable},
	{107, "silent SMBus test message", ignorable},
	{109, "context switch timeout", needsReset},
	{110, "security fault", needsReset},
	{119, "timeout of the GPU's system processor", needsReset},
	{120, "error of the GPU's system processor", needsReset},
	{121, "corrected error of the link to the CPU", ignorable},
	{126, "copy engine 10 exception", application},
	{127, "copy engine 11 exception", application},
	{128, "copy engine 12 exception", application},
	{129, "copy engine 13 exception", application},
	{130, "copy engine 14 exception", application},
	{131, "copy engine 15 exception", application},
	{132, "copy engine 16 exception", application},
	{133, "copy engine 17 exception", application},
	{134, "copy engine 18 exception", application},
	{135, "copy engine 19 exception", application},
	{136, "link training failure", needsReset},
	{137, "NVLink privilege error", ignorable},
	{139, "optical flow engine 1 exception", application},
	{140, "unrecovered ECC error", needsReset},
	{141, "CUDA fast path error", ignorable},
	{142, "video encoder 3 exception", workflow},
	{143, "GPU initialization error", needsReset},
	{144, "NVLink SAW error", workflow},
	{145, "NVLink RLW error", workflow},
	{146, "NVLink TLW error", workflow},
	{147, "NVLink TREX error", workflow},
	{148, "NVLink NVLPW_CTRL error", workflow},
	{149, "NVLink NETIR error", workflow},
	{150, "NVLink MSE error", workflow},
	{151, "key rotation error", needsReboot},
	{152, "deep learning accelerator: memory error", ignorable},
	{153, "deep learning accelerator: timeout", ignorable},
	{154, "recovery action changed", actionChanged},
	{155, "NVLink error defined by software", needsReset},
	{156, "resource retired", needsReset},
	{157, "resource not retired", ignorable},
	{158, "GPU fatal timeout", needsReset},
	{159, "error of the CPU's coherent interface", workflow},
	{160, "channel retired", ignorable},
	{161, "channel not retired", ignorable},
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
	if x.Class == application && !alone {
		text = "the fault of a program, perhaps of another pod"
	}
	if x.Class == application && healthy {
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
	case x.Class == needsReset:
		return Reset
	case x.Class == needsReboot:
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
