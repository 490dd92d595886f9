// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate_test

import (
	"errors"
	"reflect"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"

	"gpu-dra-driver/internal/testing/devicestatetest"
	"gpu-dra-driver/pkg/claim/plan"
	"gpu-dra-driver/pkg/devicestate"
)

// A repeated Prepare of a prepared claim does one of these with a field that a new plan has otherwise.
const (
	kept      = "kept"      // The record's value stays, because containers use it.
	refreshed = "refreshed" // The new value replaces it.
	replanned = "replanned" // The claim is another one: it is released and prepared anew.
)

// planFields has an entry for each field of plan.Plan and the structs in it.
var planFields = map[string]string{
	"Claim.Namespace": kept, "Claim.Name": kept, "Claim.UID": kept,
	"Allocation.Results": replanned, "Allocation.Configs": replanned, "Digest": kept, "Refused": kept, "Steps": kept,
	"Metadata.Files": kept, "Metadata.PodClaim": kept,

	"Devices.Request": kept, "Devices.Pool": kept, "Devices.Name": kept, "Devices.ShareID": kept, "Devices.Kind": kept,
	"Devices.Admin": kept, "Devices.PCIAddress": kept, "Devices.ProductName": kept,
	"Devices.UUID": refreshed, "Devices.Minor": refreshed,

	"Devices.Partition.Profile": kept, "Devices.Partition.Start": kept, "Devices.Partition.Size": kept,
	"Devices.Partition.MemoryBytes": kept, "Devices.Partition.External": kept, "Devices.Partition.Lost": kept,
	"Devices.Partition.UUID": kept, "Devices.Partition.GPUInstance": kept, "Devices.Partition.ComputeInstance": kept,

	"Devices.Share.MemoryBytes": kept, "Devices.Share.DeviceMemoryBytes": kept, "Devices.Share.Compute": kept,
	"Devices.Share.MaxShares": kept, "Devices.Share.UsableBytes": kept,

	"Devices.Sharing.Strategy": kept, "Devices.Sharing.Interval": kept, "Devices.Sharing.Timed": kept,
	"Devices.Sharing.MemoryLimit": kept, "Devices.Sharing.ActiveThreadPercentage": kept, "Devices.Sharing.MultiUser": kept,
	"Devices.Sharing.OwnSharedMemory": kept, "Devices.Sharing.ContainerLimit": kept,

	"Devices.TopologyEnv.VisibleDevices": kept, "Devices.TopologyEnv.NCCLTopology": kept,
}

// eachField calls do for each field that is not a struct, with its path. Of the devices it visits the first.
func eachField(v reflect.Value, path string, do func(path string, field reflect.Value)) {
	for i := range v.NumField() {
		f, name := v.Field(i), path+v.Type().Field(i).Name
		switch {
		case f.Kind() == reflect.Struct:
			eachField(f, name+".", do)
		case name == "Devices":
			eachField(f.Index(0), "Devices.", do)
		default:
			do(name, f)
		}
	}
}

// change gives a field another value.
func change(t *testing.T, path string, f reflect.Value) {
	switch {
	case path == "Refused":
		f.Set(reflect.ValueOf(errors.New("forbidden")))
	case path == "Steps":
		f.Set(reflect.ValueOf([]plan.Step{{Executor: "file", PCIAddress: devicestatetest.Address(0)}}))
	case f.Kind() == reflect.String:
		f.SetString(f.String() + "x")
	case f.CanInt():
		f.SetInt(f.Int() + 1)
	case f.CanUint():
		f.SetUint(f.Uint() + 1)
	case f.Kind() == reflect.Bool:
		f.SetBool(!f.Bool())
	case path == "Allocation.Results":
		f.Set(reflect.ValueOf([]plan.Result{{Request: "other"}}))
	case path == "Allocation.Configs":
		f.Set(reflect.ValueOf([]plan.Config{{Source: "FromClaim", Parameters: []byte(`{}`)}}))
	case f.Kind() == reflect.Pointer:
		f.Set(reflect.New(f.Type().Elem()))
	default:
		t.Fatalf("%s: the test cannot change a %s", path, f.Type())
	}
}

func TestPrepare_PreparedClaimPlannedOtherwise_KeepsOrRefreshesEachField(t *testing.T) {
	found := map[string]bool{}
	eachField(reflect.ValueOf(plan.Plan{Devices: make([]plan.Device, 1)}), "", func(path string, _ reflect.Value) {
		found[path] = true
		if planFields[path] == "" {
			t.Errorf("%s is new: name it in planFields, and keep or refresh it in plan.Plan.Refreshed", path)
		}
	})
	for path, want := range planFields {
		if !found[path] {
			t.Errorf("plan.Plan has no field %s", path)
			continue
		}
		t.Run(path, func(t *testing.T) {
			e, armed := devicestatetest.New(t), false
			changed := func(p plan.Plan) plan.Plan {
				p.Devices = append([]plan.Device(nil), p.Devices...)
				eachField(reflect.ValueOf(&p).Elem(), "", func(name string, f reflect.Value) {
					if name == path {
						change(t, name, f)
					}
				})
				return p
			}
			e.Configure = func(o *devicestate.Options) {
				planner := o.Planner
				o.Planner = func(c *resourceapi.ResourceClaim, n plan.Node) (plan.Plan, error) {
					p, err := planner(c, n)
					if armed {
						p = changed(p)
					}
					return p, err
				}
			}
			p := e.Start()
			e.SteppedClaim("a", "0")
			e.Prepare(p, "a")
			before := heldPlan(t, p)
			armed = true
			e.Prepare(p, "a")
			after := heldPlan(t, p)
			if want != kept {
				before = changed(before)
			}
			if diff := cmp.Diff(before, after); diff != "" {
				t.Errorf("it is not %s (-want +got):\n%s", want, diff)
			}
		})
	}
}

// heldPlan returns the only plan of a record.
func heldPlan(t *testing.T, p *devicestatetest.Process) plan.Plan {
	t.Helper()
	plans, _, err := p.Held()
	if err != nil || len(plans) != 1 {
		t.Fatalf("%d plans, %v", len(plans), err)
	}
	return plans[0]
}
