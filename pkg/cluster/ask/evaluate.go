// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package ask

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"weak"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/lru"

	"gpu-dra-driver/pkg/cluster/pool"
	"gpu-dra-driver/pkg/cluster/selector"
)

// Evaluator evaluates selectors. It keeps the slow results: their compiled form, their analysis, and the matching
// devices. One Evaluator serves a whole process, because a Shape never changes. It is safe for concurrent use.
type Evaluator struct {
	compiled *cel.Cache
	readings *lru.Cache // By expression.
	trials   *lru.Cache // By trial.
	alike    *lru.Cache // By values.
}

// maxCompiled is the number of compiled selectors. One of the API's largest size takes 1.5 MB.
const maxCompiled = 100

// NewEvaluator returns an Evaluator with room for the selectors of a busy cluster.
func NewEvaluator() *Evaluator {
	return &Evaluator{cel.NewCache(maxCompiled, cel.Features{EnableConsumableCapacity: true}), lru.New(500),
		lru.New(5000), lru.New(5000)}
}

// Read analyses an expression. An invalid one has an empty reading, because the API server refuses it.
func (e *Evaluator) Read(expression string) selector.Reading {
	if known, ok := e.readings.Get(expression); ok {
		return known.(selector.Reading)
	}
	r, _ := selector.Read(expression)
	e.readings.Add(expression, r)
	return r
}

// sum stands for a text in the key of a cache. An expression can have 10 KiB, and who can create a claim can write any
// number of them.
type sum [sha256.Size]byte

func sumOf(text string) sum { return sha256.Sum256([]byte(text)) }

// trial is an expression and a shape, which it does not keep alive. With trials, a second
// review of a class takes 0.07 ms instead of 32 ms in a cluster of twelve makes, and 6 µs instead of 170 µs with one.
type trial struct {
	shape      weak.Pointer[pool.Shape]
	expression sum
}

// Results of a trial. A failing expression is evaluated again each time, for its error.
const (
	untried uint32 = iota
	satisfied
	unsatisfied
)

// Candidate is a device to evaluate selectors on.
type Candidate struct {
	// Shape and Index are the key of the device's results, of which there are Of. Shape is nil for devices of no slice;
	// then an Index has the same device everywhere. With Of 0 there is no key.
	Shape     *pool.Shape
	Index, Of int
	Device    cel.Device
}

// Published returns the index-th device of a shape.
func Published(shape *pool.Shape, index int) Candidate {
	return Candidate{shape, index, len(shape.Spec.Devices), device(shape.Spec.Driver, shape.Spec.Devices[index])}
}

func device(driver string, d resourceapi.Device) cel.Device {
	return cel.Device{
		Driver:                   driver,
		Attributes:               d.Attributes,
		Capacity:                 d.Capacity,
		AllowMultipleAllocations: d.AllowMultipleAllocations,
	}
}

// ErrInvalid means that an expression does not compile. The API server refuses such an expression.
var ErrInvalid = errors.New("the selector does not compile")

// Failing evaluates expressions in turn, as the scheduler does. It returns the first that is false or fails, or "".
func (e *Evaluator) Failing(ctx context.Context, expressions []string, c Candidate) (string, error) {
	for _, expression := range expressions {
		if ok, err := e.Matches(ctx, expression, c); !ok || err != nil {
			return expression, err
		}
	}
	return "", nil
}

// Matches returns the known result of an expression, or evaluates it.
func (e *Evaluator) Matches(ctx context.Context, expression string, c Candidate) (bool, error) {
	if c.Of == 0 {
		return e.evaluate(ctx, expression, c.Device)
	}
	key := trial{weak.Make(c.Shape), sumOf(expression)}
	var results []atomic.Uint32
	if known, ok := e.trials.Get(key); ok {
		results = known.([]atomic.Uint32)
	} else {
		results = make([]atomic.Uint32, c.Of)
		e.trials.Add(key, results)
	}
	if known := results[c.Index].Load(); known != untried {
		return known == satisfied, nil
	}
	ok, err := e.evaluate(ctx, expression, c.Device)
	switch {
	case err != nil:
	case ok:
		results[c.Index].Store(satisfied)
	default:
		results[c.Index].Store(unsatisfied)
	}
	return ok, err
}

// values is an expression with all that it reads of a device. Many devices of a cluster differ only in other
// attributes.
type values struct{ expression, read sum }

func (e *Evaluator) evaluate(ctx context.Context, expression string, d cel.Device) (bool, error) {
	reading := e.Read(expression)
	key := values{expression: sumOf(expression)}
	if reading.Complete {
		key.read = sumOf(readOf(d, reading.Names))
		if known, ok := e.alike.Get(key); ok {
			return known.(bool), nil
		}
	}
	compiled := e.compiled.GetOrCompile(expression)
	if compiled.Error != nil {
		return false, fmt.Errorf("%w: %s", ErrInvalid, compiled.Error.Detail)
	}
	ok, _, err := compiled.DeviceMatches(ctx, d)
	if reading.Complete && err == nil {
		e.alike.Add(key, ok)
	}
	return ok, err
}

// readOf returns a text that is equal for devices with the same driver and the same values of the names.
func readOf(d cel.Device, names []selector.Name) string {
	text := strconv.AppendQuote(nil, d.Driver)
	for _, n := range names {
		written := []resourceapi.QualifiedName{resourceapi.QualifiedName(n.Domain + "/" + n.ID)}
		if n.Domain == d.Driver {
			written = append(written, resourceapi.QualifiedName(n.ID))
		}
		for _, name := range written {
			var data []byte
			if attribute, ok := d.Attributes[name]; ok && !n.Capacity {
				data, _ = attribute.Marshal() // A decoded object always encodes.
				text = append(text, '=')
			} else if capacity, ok := d.Capacity[name]; ok && n.Capacity {
				data = []byte(capacity.Value.String())
				text = append(text, '=')
			}
			text = strconv.AppendQuote(text, string(data))
		}
	}
	return string(text)
}
