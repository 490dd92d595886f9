// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package web

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"gpu-dra-driver/pkg/show/view"
)

// Measure reads the use of the GPUs of a few nodes. A node that could not be measured has a reason instead. The error
// means that no node can be measured, as without a right.
type Measure func(ctx context.Context,
	nodes []string) (use map[view.GPUName]view.GPUUse, missing map[string]string, err error)

const (
	// maxMeasured is the number of nodes in a request. A page asks for those on screen.
	maxMeasured = 32
	// measuredFor is how long figures answer other pages, and measurePause the least time between two readings.
	measuredFor  = 8 * time.Second
	measurePause = time.Second
	// measureLimit ends a reading. refusedPause is how long none follows one that was refused.
	measureLimit = 8 * time.Second
	refusedPause = time.Minute
)

// meter serves the use of GPUs. It reads for one page at a time, and keeps the figures a moment for the others.
type meter struct {
	measure Measure

	mu    sync.Mutex
	nodes map[string]measured
	last  time.Time
	// refused is the reason for which no node can be measured, until retryAt.
	refused string
	retryAt time.Time
}

// measured are the figures of a node.
type measured struct {
	at      time.Time
	gpus    map[string]gpuUse
	missing string
}

// gpuUse is the use of a GPU. A nil value was not measured.
type gpuUse struct {
	Utilization     *float64 `json:"utilization,omitempty"`
	MemoryUsedBytes *float64 `json:"memoryUsedBytes,omitempty"`
}

// useAnswer has the figures of nodes, and the reasons for those that are missing.
type useAnswer struct {
	Nodes   map[string]map[string]gpuUse `json:"nodes,omitempty"`
	Missing map[string]string            `json:"missing,omitempty"`
	Refused string                       `json:"refused,omitempty"`
}

func (m *meter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	asked := r.URL.Query()["node"]
	slices.Sort(asked)
	asked = slices.Compact(asked)
	if len(asked) == 0 || len(asked) > maxMeasured {
		http.Error(w, fmt.Sprintf("Ask for 1 to %d nodes.", maxMeasured), http.StatusBadRequest)
		return
	}
	answer, err := m.ask(r.Context(), asked)
	if err != nil {
		return // The browser has closed the connection.
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // The browser may have closed the connection.
}

func (m *meter) ask(ctx context.Context, asked []string) (useAnswer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if time.Now().Before(m.retryAt) {
		return useAnswer{Refused: m.refused}, nil
	}
	var due []string
	for _, n := range asked {
		if time.Since(m.nodes[n].at) >= measuredFor {
			due = append(due, n)
		}
	}
	if len(due) > 0 {
		if err := m.read(ctx, due); err != nil {
			return useAnswer{}, err
		}
	}
	if m.refused != "" {
		return useAnswer{Refused: m.refused}, nil
	}
	out := useAnswer{Nodes: map[string]map[string]gpuUse{}, Missing: map[string]string{}}
	for _, n := range asked {
		if one := m.nodes[n]; one.missing != "" {
			out.Missing[n] = one.missing
		} else {
			out.Nodes[n] = one.gpus
		}
	}
	return out, nil
}

// read measures nodes. It forgets the figures of all nodes that no page asks for any more.
func (m *meter) read(ctx context.Context, nodes []string) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(measurePause - time.Since(m.last)):
	}
	limited, cancel := context.WithTimeout(ctx, measureLimit)
	defer cancel()
	use, missing, err := m.measure(limited, nodes)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	m.last, m.refused = time.Now(), ""
	for n, one := range m.nodes {
		if time.Since(one.at) >= measuredFor+measurePause+measureLimit { // The request can still ask for it.
			delete(m.nodes, n)
		}
	}
	if err != nil {
		m.refused, m.retryAt = err.Error(), m.last.Add(refusedPause)
		return nil
	}
	for _, n := range nodes {
		m.nodes[n] = measured{m.last, map[string]gpuUse{}, missing[n]}
	}
	for name, u := range use {
		if one, ok := m.nodes[name.Node]; ok && one.missing == "" {
			one.gpus[name.Name] = gpuUse{u.Utilization, u.MemoryUsedBytes}
		}
	}
	return nil
}
