// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"encoding/json"
	"slices"

	"gpu-dra-driver/pkg/gpu"
)

// Plan is what one claim needs on this node.
type Plan struct {
	Claim Claim `json:"claim"`
	// Allocation identifies what the scheduler gave the claim: two plans of a claim UID with different allocations
	// are different plans, never "already prepared".
	Allocation string   `json:"allocation"`
	Devices    []Device `json:"devices"`
	// Steps are the effects beyond the CDI spec that a crash could strand, in the order of execution.
	Steps []Step `json:"steps,omitempty"`
}

// Claim identifies a ResourceClaim. Only the UID is an identity: a name can be used again.
type Claim struct {
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	UID       string `json:"uid"`
}

func (c Claim) String() string { return c.Namespace + "/" + c.Name }

// Device is one allocated device.
type Device struct {
	// Request is the request's name, "request/subrequest" for an alternative of firstAvailable.
	Request string   `json:"request"`
	Pool    string   `json:"pool"`
	Name    string   `json:"name"`
	ShareID string   `json:"shareID,omitempty"`
	Kind    gpu.Kind `json:"kind"`
	// Admin says that the claim only watches: it neither blocks others nor is blocked by them.
	Admin      bool   `json:"admin,omitempty"`
	PCIAddress string `json:"pciAddress"`
	UUID       string `json:"uuid"`
	// Minor is the number in /dev/nvidia<minor>, of the boot that the plan was made in.
	Minor int `json:"minor"`
}

// Step is one effect of an executor.
type Step struct {
	// Executor names who carries it out and takes it back.
	Executor string `json:"executor"`
	// PCIAddress is the GPU it changes.
	PCIAddress string `json:"pciAddress"`
	// Spec is the executor's own, enough to find the effect again.
	Spec json.RawMessage `json:"spec,omitempty"`
}

// Addresses are the physical GPUs whose locks the plan needs, in locking order, each once.
func (p Plan) Addresses() []string { return p.addresses(func(Device) bool { return true }) }

// Exclusive are the physical GPUs that the plan takes for itself, in locking order: watching does not count.
func (p Plan) Exclusive() []string { return p.addresses(func(d Device) bool { return !d.Admin }) }

func (p Plan) addresses(keep func(Device) bool) []string {
	var out []string
	for _, d := range p.Devices {
		if keep(d) {
			out = append(out, d.PCIAddress)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
