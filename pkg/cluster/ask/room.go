// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package ask

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math/bits"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/ptr"

	"gpu-dra-driver/pkg/cluster/pool"
)

// Short is a request that counts more devices than a node can give it beside the requests before it.
type Short struct {
	Request     string
	Asked, Most int64
	// Beside means that the requests before it leave the node less room.
	Beside bool
}

func (s Short) String() string {
	text := fmt.Sprintf("has room for %d of the %d devices of request %s", s.Most, s.Asked, s.Request)
	if s.Beside {
		text += " beside the others"
	}
	return text
}

// TooFew returns a request for which the node has too few devices, or nil. Each test here is one that every allocation
// passes: nil does not mean that the requests fit. Alternatives, requests of an open number, for administrators, for a
// small part of a shared device or without a class count for nothing. The error is the first one of a selector, if the
// requests before it have enough devices.
func (a Asker) TooFew(
	ctx context.Context, n *Node, released sets.Set[types.NamespacedName], requests []Request,
) (*Short, error) {
	requests = slices.DeleteFunc(slices.Clone(requests), func(q Request) bool {
		return q.Class == nil || q.Admin() || q.Alternative() || q.Devices() == 0
	})
	r := room{counted: requests[:min(len(requests), bits.UintSize)], left: n.left(released), sets: map[setID][]option{}}
	err := a.options(ctx, n, released, &r)
	if short := r.short(); short != nil {
		return short, nil
	}
	return nil, err
}

// options finds the devices that the requests could get. After an error only the requests before its own count.
func (a Asker) options(
	ctx context.Context, n *Node, released sets.Set[types.NamespacedName], r *room,
) (first error) {
	expressions := make([][]string, len(r.counted))
	for k, q := range r.counted {
		expressions[k] = q.Expressions()
	}
	for _, s := range n.Slices {
		id := s.id()
		for i, d := range s.Spec.Devices {
			used := n.inUse(id, d.Name, released)
			if n.whole(id, d.Name, released) || !used && len(r.left[id].Lacking(d)) > 0 {
				continue
			}
			o, set := option{}, setID{ID: id}
			if len(d.ConsumesCounters) > 0 && !used {
				set.set, o.use = d.ConsumesCounters[0].CounterSet, d.ConsumesCounters[0].Counters
			}
			for k, q := range r.counted {
				failed, err := a.Failing(ctx, expressions[k], s.Candidate(i))
				switch {
				case err != nil:
					r.counted, first = r.counted[:k], err
				case failed != "" || len(Untolerated(d, q.Tolerations)) > 0:
				case ptr.Deref(d.AllowMultipleAllocations, false) && !takesAll(q, d):
					r.open |= 1 << k
				default:
					o.requests |= 1 << k
				}
				if err != nil {
					break
				}
			}
			if o.requests == 0 {
				continue
			}
			r.sets[set] = append(r.sets[set], o)
			if len(r.counted) == 1 && r.counted[0].Devices() == 1 {
				return first // The common question.
			}
		}
	}
	return first
}

// takesAll reports whether a request takes all of a capacity of a shared device of which each request takes a part.
func takesAll(q Request, d resourceapi.Device) bool {
	all := false
	for name, c := range d.Capacity {
		if usual := Needed(Request{}, name, c); usual.Sign() <= 0 {
			continue
		}
		need := Needed(q, name, c)
		if need.Sign() <= 0 {
			return false
		}
		all = all || need.Cmp(c.Value) >= 0
	}
	return all
}

// room bounds how many devices of each request a node can give at once. The devices of one counter set compete for it,
// and the sets do not. So it adds up numbers of each set, where the scheduler's allocator tries all devices of the node
// in every order.
type room struct {
	counted []Request
	left    map[pool.ID]pool.Counters
	// open has the requests without a bound.
	open uint64
	// sets has the devices by counter set.
	sets map[setID][]option
}

type setID struct {
	pool.ID
	set string
}

// option is a device that some requests can have.
type option struct {
	use      map[string]resourceapi.Counter
	requests uint64
}

// maxSteps limits the search of a bound. If it needs more, it finds none.
const maxSteps = 50_000

// short returns the first request for which the node has too few devices, or nil. Requests get devices in their order,
// as in the allocator.
func (r *room) short() *Short {
	steps, known := maxSteps, map[string][][]int64{}
	most := [][]int64{make([]int64, len(r.counted))}
	for id, options := range r.sets {
		most = r.join(most, r.given(id, options, known, &steps), &steps)
		if steps <= 0 {
			return nil
		}
	}
	best := slices.MaxFunc(most, slices.Compare)
	i := 0
	for ; i < len(best) && !r.wants(i, best[i]); i++ {
	}
	if i == len(best) {
		return nil
	}
	alone := slices.MaxFunc(most, func(x, y []int64) int { return cmp.Compare(x[i], y[i]) })[i]
	return &Short{r.counted[i].Name, r.counted[i].Devices(), best[i], alone > best[i]}
}

// wants reports whether a request needs more devices than the given ones.
func (r *room) wants(request int, given int64) bool {
	return r.open&(1<<request) == 0 && given < r.counted[request].Devices()
}

// given returns how many devices the requests can get from one counter set. Each entry has a number for each request,
// and no other entry has at least as many of all. The GPUs of a node usually are alike, so the results are kept.
func (r *room) given(id setID, options []option, known map[string][][]int64, steps *int) [][]int64 {
	names, left := []string(nil), []int64(nil)
	for _, name := range slices.Sorted(maps.Keys(r.left[id.ID][id.set])) {
		q := r.left[id.ID][id.set][name]
		if n, ok := q.AsInt64(); ok {
			names, left = append(names, name), append(left, n)
		}
	}
	uses, key := make([][]int64, len(options)), encode(append([]int64{int64(len(left))}, left...))
	for i, o := range options {
		uses[i] = make([]int64, len(names))
		for j, name := range names {
			c := o.use[name]
			uses[i][j], _ = c.Value.AsInt64() // No amount that is not a number of units bounds anything.
		}
		key = append(append(key, encode(uses[i])...), encode([]int64{int64(o.requests)})...)
	}
	if found, ok := known[string(key)]; ok {
		return found
	}
	type state struct{ given, left []int64 }
	states := []state{{make([]int64, len(r.counted)), left}}
	seen := map[string]bool{}
	for i, o := range options {
		for _, s := range states {
			if *steps -= len(r.counted); *steps <= 0 {
				return nil
			}
			after := slices.Clone(s.left)
			for j, n := range uses[i] {
				after[j] -= n
			}
			for q := range r.counted {
				if o.requests&(1<<q) == 0 || !r.wants(q, s.given[q]) ||
					len(after) > 0 && slices.Min(after) < 0 {
					continue
				}
				given := slices.Clone(s.given)
				given[q]++
				if k := string(append(encode(given), encode(after)...)); !seen[k] {
					seen[k], states = true, append(states, state{given, after})
				}
			}
		}
	}
	var out [][]int64
	for _, s := range states {
		out = append(out, s.given)
	}
	known[string(key)] = greatest(out, steps)
	return known[string(key)]
}

// join returns the sums of what two counter sets give.
func (r *room) join(x, y [][]int64, steps *int) (out [][]int64) {
	for _, a := range x {
		for _, b := range y {
			if *steps -= len(a); *steps <= 0 {
				return nil
			}
			sum := make([]int64, len(a))
			for i := range sum {
				sum[i] = min(a[i]+b[i], r.counted[i].Devices())
			}
			out = append(out, sum)
		}
	}
	return greatest(out, steps)
}

// greatest leaves out each entry that another one covers.
func greatest(all [][]int64, steps *int) (out [][]int64) {
	slices.SortFunc(all, func(x, y []int64) int { return slices.Compare(y, x) })
	for _, one := range all {
		*steps -= len(out)
		if *steps <= 0 {
			return nil
		}
		if !slices.ContainsFunc(out, func(other []int64) bool { return covers(other, one) }) {
			out = append(out, one)
		}
	}
	return out
}

func covers(x, y []int64) bool {
	for i := range x {
		if x[i] < y[i] {
			return false
		}
	}
	return true
}

func encode(all []int64) (out []byte) {
	for _, n := range all {
		out = binary.AppendVarint(out, n)
	}
	return out
}
