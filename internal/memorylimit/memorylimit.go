// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package memorylimit is the request by which the hook of a starting container asks the plugin to limit the container's
// memory on a GPU. Either side can be older: new versions only add fields and flags.
package memorylimit

import (
	"errors"
	"flag"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"
)

// HookName is the file name of the hook, in the plugin's image and in its data directory.
const HookName = "memory-limit-hook"

// Request asks for the limit of a container on one device. A container with several shares of a GPU has several
// requests, whose limits add up.
type Request struct {
	// Claim is namespace/name, ClaimUID its UID, Device the device's name.
	Claim    string `json:"claim"`
	ClaimUID string `json:"claimUID"`
	Device   string `json:"device"`
	// Share is the share's ID, if its claim has another share of the device with as many bytes.
	Share string `json:"share,omitempty"`
	// Address and UUID are the GPU's.
	Address string `json:"address"`
	UUID    string `json:"uuid"`
	// Bytes is the limit.
	Bytes uint64 `json:"bytes"`
	// Cgroup is the container's, below the root of the node's cgroups: "/kubepods.slice/…".
	Cgroup string `json:"cgroup"`
}

// Check refuses what a plugin cannot carry out.
func (r Request) Check() error {
	switch {
	case r.Address == "" || r.UUID == "" || r.Device == "":
		return errors.New("it names no GPU")
	case r.Bytes == 0:
		return errors.New("its limit is 0 bytes")
	case r.Cgroup == "/" || !strings.HasPrefix(r.Cgroup, "/") || path.Clean(r.Cgroup) != r.Cgroup:
		return fmt.Errorf("%q is not the path of a container's cgroup", r.Cgroup)
	}
	return nil
}

// Args are the arguments of the hook, with its name. The requests' directory is the node's.
func (r Request) Args(requests string) []string {
	args := []string{
		HookName, "--requests=" + requests, "--claim=" + r.Claim, "--claim-uid=" + r.ClaimUID, "--device=" + r.Device,
		"--gpu=" + r.Address, "--uuid=" + r.UUID,
		"--bytes=" + strconv.FormatUint(r.Bytes, 10),
	}
	if r.Share != "" {
		args = append(args, "--share="+r.Share)
	}
	return args
}

// Parse reads these arguments, and further flags by name. It skips flags of a newer release.
func (r *Request) Parse(fs *flag.FlagSet, args []string) (requests string, err error) {
	fs.StringVar(&r.Claim, "claim", "", "namespace and name of the claim")
	fs.StringVar(&r.ClaimUID, "claim-uid", "", "UID of the claim")
	fs.StringVar(&r.Device, "device", "", "name of the device")
	fs.StringVar(&r.Share, "share", "", "ID of the share")
	fs.StringVar(&r.Address, "gpu", "", "PCI address of the GPU")
	fs.StringVar(&r.UUID, "uuid", "", "UUID of the GPU")
	fs.Uint64Var(&r.Bytes, "bytes", 0, "limit of the container's memory on the GPU")
	fs.StringVar(&requests, "requests", "", "directory of the plugin's requests")
	known := slices.DeleteFunc(slices.Clone(args), func(arg string) bool {
		name, _, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		return fs.Lookup(name) == nil
	})
	return requests, fs.Parse(known)
}
