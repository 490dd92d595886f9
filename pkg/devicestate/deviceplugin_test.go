// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package devicestate_test

import (
	"testing"

	"gpu-dra-driver/internal/testing/devicestatetest"
	"gpu-dra-driver/pkg/claim/claimerror"
	"gpu-dra-driver/pkg/devicestate"
)

func TestPrepare_GPUServedByDevicePlugin_Refused(t *testing.T) {
	e := devicestatetest.New(t)
	served := devicestatetest.DevicePlugins{}
	e.Configure = func(o *devicestate.Options) {
		o.DevicePlugins = served
	}
	p := e.Start()
	e.Claim("a", "1")
	e.Prepare(p, "a")
	served[devicestatetest.Address(1)] = "nvidia.com/gpu"
	e.Prepare(p, "a") // A prepared claim stays prepared.
	e.Unprepare(p, "a")
	e.CheckRefused(p, "a", claimerror.Transient, claimerror.DeviceInUse, "gpu-0000-11-00-0", "device plugin", "nvidia.com/gpu", "Remove the device plugin")
	e.Claim("b", "0", "1")
	e.CheckRefused(p, "b", claimerror.Transient, claimerror.DeviceInUse, "device plugin")
	e.CheckClean(p)
	e.Claim("watches", "monitor 1")
	e.Prepare(p, "watches")
	e.CheckClean(p, "watches")
	clear(served)
	e.Prepare(p, "a")
	e.CheckClean(p, "a", "watches")
}

// TestPrepare_DevicePluginsUnknown_RefusedUnlessPrepared has a kubelet that has not answered a new process.
func TestPrepare_DevicePluginsUnknown_RefusedUnlessPrepared(t *testing.T) {
	e := devicestatetest.New(t)
	served := devicestatetest.DevicePlugins{}
	e.Configure = func(o *devicestate.Options) { o.DevicePlugins = served }
	p := e.Start()
	e.Claim("a", "1")
	e.Prepare(p, "a")
	served[devicestatetest.UnknownDevicePlugins] = "yes"
	p = e.Start()
	e.Prepare(p, "a") // Its pod runs.
	e.Claim("b", "0")
	e.CheckRefused(p, "b", claimerror.Transient, claimerror.KubeletUnreachable, "gpu-0000-10-00-0", "the kubelet has not said yet")
	e.Claim("watches", "monitor 1")
	e.Prepare(p, "watches")
	e.Unprepare(p, "a") // A pod ends without the kubelet's answer.
	e.CheckClean(p, "watches")
	clear(served)
	e.Prepare(p, "b")
	e.CheckClean(p, "b", "watches")
}
