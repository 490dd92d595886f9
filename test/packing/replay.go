// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"slices"
	"strconv"

	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/partition/layout/layouttest"
)

// score is the result of a replay.
type score struct {
	accepted, asked int
	// stranded is the mean number of the node's free memory slices that no profile can use. whole is the share of the
	// time in which a 7g.80gb was free.
	stranded, whole float64
	fragments       fragments
	// log holds the place of each request, "" for a refused one.
	log []string
}

func (s score) acceptance() float64 { return 100 * float64(s.accepted) / float64(s.asked) }

// placer is the scheduler, or a model of it.
type placer interface {
	place(profile string) (gpu.Device, bool, error)
	release(gpu.Device)
}

// replay plays a trace. A request without a place leaves at once, like a pod that runs on another node.
func replay(p placer, gpus int, requests []request) (score, error) {
	s := score{asked: len(requests)}
	type stay struct {
		departs float64
		device  gpu.Device
	}
	var there []stay
	occupied, used := map[string][]gpu.Placement{}, make(occupancy, gpus)
	profiles := layouttest.H100().Profiles
	now := 0.0
	account := func(until float64) {
		stranded, whole := 0, len(occupied) < gpus
		for _, places := range occupied {
			stranded += layouttest.Stranded(profiles, places)
			whole = whole || len(places) == 0
		}
		s.stranded += float64(stranded) * (until - now)
		if whole {
			s.whole += until - now
		}
		s.fragments.account(until-now, used.free(), float64(used.blocked())/float64(gpus))
		now = until
	}
	for _, r := range requests {
		slices.SortFunc(there, func(a, b stay) int { return cmp.Compare(a.departs, b.departs) })
		for len(there) > 0 && there[0].departs <= r.arrives {
			gone := there[0]
			there = there[1:]
			account(gone.departs)
			p.release(gone.device)
			used.add(gone.device, -1)
			occupied[gone.device.PCIAddress] = slices.DeleteFunc(occupied[gone.device.PCIAddress], placement(gone.device).Overlaps)
		}
		account(r.arrives)
		device, ok, err := p.place(r.profile)
		if err != nil {
			return s, err
		}
		if !ok {
			s.log = append(s.log, "")
			continue
		}
		s.accepted++
		s.log = append(s.log, device.PCIAddress+" "+strconv.Itoa(device.Start))
		there = append(there, stay{r.departs, device})
		used.add(device, 1)
		occupied[device.PCIAddress] = append(occupied[device.PCIAddress], placement(device))
	}
	s.stranded, s.whole = s.stranded/now, 100*s.whole/now
	return s, nil
}

func placement(d gpu.Device) gpu.Placement {
	return gpu.Placement{Start: d.Start, Size: slicesOf[d.Profile]}
}
