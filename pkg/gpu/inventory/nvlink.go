// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"cmp"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"gpu-dra-driver/internal/nvml"
	"gpu-dra-driver/pkg/gpu"
)

// links reads the NVLinks that are up.
func (r *reader) links(d nvml.Device, g *gpu.GPU) {
	links, err := d.NVLinks()
	if !r.optional("the NVLinks", err) {
		return
	}
	for _, l := range links {
		one := gpu.Link{Index: l.Index, Version: l.Version, Peer: cmp.Or(peerOf[l.Remote], gpu.PeerOther)}
		one.PeerAddress, _ = gpu.CanonicalAddress(l.RemoteBusID) // Empty if NVML reports none.
		g.Links = append(g.Links, one)
	}
}

var peerOf = map[nvml.RemoteDevice]gpu.Peer{nvml.RemoteGPU: gpu.PeerGPU, nvml.RemoteSwitch: gpu.PeerSwitch}

// fabric reads the GPU's registration with its fabric.
func (r *reader) fabric(d nvml.Device, g *gpu.GPU) {
	f, err := d.Fabric()
	if !r.optional("the NVLink fabric", err) {
		return
	}
	switch {
	case f.State != nvml.FabricCompleted:
		g.Fabric.State = gpu.FabricPending
	case f.Status != nil:
		g.Fabric.State = gpu.FabricFailed
	default:
		g.Fabric = gpu.Fabric{State: gpu.FabricReady}
		// Without a UUID the fabric ends at the board and the clique ID means nothing.
		if u := f.ClusterUUID; u != [16]byte{} {
			g.Fabric.ClusterUUID = fmt.Sprintf("%x-%x-%x-%x-%x", u[:4], u[4:6], u[6:8], u[8:10], u[10:])
			g.Fabric.CliqueID = f.CliqueID
		}
	}
}

// linking asks for the peers of a GPU among others.
type linking struct {
	session *session
	device  nvml.Device
	others  map[[2]string]nvml.Device
	peers   map[[2]string]bool
}

// ask can return after its scan.
func (l *linking) ask() error {
	l.peers = map[[2]string]bool{}
	for pair, other := range l.others {
		peer, err := l.device.NVLinkPeer(other)
		l.peers[pair] = nvml.Unavailable(err) || err == nil && peer
	}
	return nil
}

// findPeers asks NVML about peer access between every two GPUs with links between them. If the driver does not support
// the query, the links decide. If the query fails, the GPUs are not peers. If it hangs, the last answer stays.
func (i *Inventory) findPeers(session *session, gpus []gpu.GPU, read map[string]reading) {
	questions := map[string]linking{}
	for n, a := range gpus {
		l := linking{session: session, device: read[a.PCIAddress].device, others: map[[2]string]nvml.Device{}}
		for _, b := range gpus[:n] {
			if suggested(a, b) {
				l.others[[2]string{a.UUID, b.UUID}] = read[b.PCIAddress].device
			}
		}
		if len(l.others) > 0 {
			questions[a.PCIAddress] = l
		}
	}
	i.await(session, i.linking.Begin(questions, (*linking).ask))
	answers := map[[2]string]bool{}
	for _, q := range questions {
		for pair := range q.others {
			answers[pair] = i.peers[pair]
		}
	}
	ended, _ := i.linking.Results()
	for _, a := range ended {
		if a.Item.session == session {
			maps.Copy(answers, a.Item.peers)
		}
	}
	i.peers = answers
	for n := range gpus {
		for m := range n {
			a, b := &gpus[n], &gpus[m]
			if peer, asked := answers[[2]string{a.UUID, b.UUID}]; asked && !peer {
				a.Unreachable = append(a.Unreachable, b.PCIAddress)
				b.Unreachable = append(b.Unreachable, a.PCIAddress)
			}
		}
	}
	for n := range gpus {
		slices.Sort(gpus[n].Unreachable)
	}
}

// suggested reports whether two GPUs have a link to each other, or both to switches.
func suggested(a, b gpu.GPU) bool {
	to := func(g gpu.GPU, peer gpu.Peer, address string) bool {
		return slices.ContainsFunc(g.Links, func(l gpu.Link) bool {
			return l.Peer == peer && (peer == gpu.PeerSwitch || l.PeerAddress == address)
		})
	}
	return to(a, gpu.PeerGPU, b.PCIAddress) || to(b, gpu.PeerGPU, a.PCIAddress) ||
		to(a, gpu.PeerSwitch, "") && to(b, gpu.PeerSwitch, "")
}

// bridges returns the PCI addresses above a device in sysfs, from the root complex down.
func (i *Inventory) bridges(address string) []string {
	path, err := filepath.EvalSymlinks(filepath.Join(i.o.SysRoot, "bus/pci/devices", address))
	if err != nil {
		return nil
	}
	var out []string
	for _, part := range strings.Split(path, string(filepath.Separator)) {
		if canonical, err := gpu.CanonicalAddress(part); err == nil && canonical == part && part != address {
			out = append(out, part)
		}
	}
	return out
}
