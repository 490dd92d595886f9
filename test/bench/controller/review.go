// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	admissionv1 "k8s.io/api/admission/v1"

	"gpu-dra-driver/pkg/cluster/admission"
	"gpu-dra-driver/test/bench/table"
	"gpu-dra-driver/test/fleetserver"
)

// small measures a cluster of a few nodes.
func (b *bench) small(ctx context.Context, s *fleetserver.Server, p *process) error {
	if _, err := b.cold(ctx, s, p, 8); err != nil {
		return err
	}
	peak, err := p.memory("VmHWM")
	if err != nil {
		return err
	}
	b.rows = append(b.rows, table.Plain("peak memory, 8 nodes", fmt.Sprintf("%.0f MB", peak), "-", false))
	return b.review(ctx, s, p, "8 nodes")
}

// asker calls the webhook as the API server does: over HTTP/1.1, with persistent connections.
type asker struct{ client *http.Client }

func newAsker(authority []byte) asker {
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	return asker{&http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{RootCAs: roots, NextProtos: []string{"http/1.1"}, MinVersion: tls.VersionTLS12}, MaxIdleConnsPerHost: 64,
	}}}
}

// ask posts a body, none for nil, and returns the answer's body.
func (a asker) ask(ctx context.Context, path string, body []byte) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, fmt.Sprintf("https://127.0.0.1:%d%s", webhookPort, path), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := a.client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	return io.ReadAll(response.Body)
}

// review sends reviews at a steady rate, regardless of slow answers. Half an interval after each review it sends an
// empty request. Latencies count from the scheduled times.
func (b *bench) review(ctx context.Context, s *fleetserver.Server, p *process, where string) error {
	beat, n := time.Second/time.Duration(b.rate), int(b.reviews.Seconds()*float64(b.rate))
	asked, err := reviews(n)
	if err != nil {
		return err
	}
	a := newAsker(s.Authority())
	defer a.client.CloseIdleConnections()
	for i := range len(mix) { // The first of each kind compiles expressions for all others.
		if _, err := a.ask(ctx, asked[i].path, asked[i].body); err != nil {
			return err
		}
	}
	defer b.profileDuring(ctx, "reviews")()
	pairs, errs := make([]table.Pair, n), make([]error, n)
	before, _, err := p.both()
	if err != nil {
		return err
	}
	late := make([]table.Pair, n)
	var cut atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for i := range n {
		due := began.Add(time.Duration(i) * beat)
		if err := wait(ctx, time.Until(due)); err != nil {
			return err
		}
		late[i].Figure = time.Since(due)
		wg.Go(func() {
			var answer []byte
			answer, errs[i] = a.ask(ctx, asked[i].path, asked[i].body)
			pairs[i].Figure = time.Since(due)
			if errs[i] == nil {
				var one bool
				if one, errs[i] = asked[i].check(answer); one {
					cut.Add(1)
				}
			}
		})
		half := due.Add(beat / 2)
		if err := wait(ctx, time.Until(half)); err != nil {
			return err
		}
		wg.Go(func() {
			_, err := a.ask(ctx, "/", nil)
			pairs[i].Floor = time.Since(half)
			if err != nil {
				errs[i] = err
			}
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	after, _, err := p.both()
	if err != nil {
		return err
	}
	fmt.Fprintf(b.log, "  this program's own timer is late by %s in one of a hundred beats\n", table.Millis(table.Quantile(table.Figures(late), 0.99)))
	const most = 5 * time.Millisecond
	b.within(fmt.Sprintf("review at %d/s, %s", b.rate, where), pairs, most)
	quiet := calm(pairs)
	value, floor := table.Quantile(table.Figures(quiet), 0.99), table.Quantile(table.Floors(quiet), 0.99)
	b.rows = append(b.rows, table.Row{
		Figure: fmt.Sprintf("  p99 while the machine answers, %.0f %% of them", 100*float64(len(quiet))/float64(n)), Value: table.Millis(value), Floor: table.Millis(floor),
		Ratio: fmt.Sprintf("%.2f", float64(value)/float64(floor)), Budget: most.String(), Over: value > most,
	})
	b.rows = append(b.rows, table.Plain("reviews cut short by their time limit, "+where, fmt.Sprintf("%d of %d", cut.Load(), n), "-", false))
	b.rows = append(b.rows, table.Plain(fmt.Sprintf("CPU at %d reviews/s, %s", b.rate, where), fmt.Sprintf("%.1f %%", 100*(after-before).Seconds()/b.reviews.Seconds()), "-", false))
	b.slowest(pairs)
	return table.Keep(b.raw, "review-"+strings.ReplaceAll(where, " ", "-"), pairs)
}

// calm selects the samples between two empty requests with typical latencies: other load stalls the machine for tens
// of milliseconds.
func calm(pairs []table.Pair) (out []table.Pair) {
	usual := 3 * table.Quantile(table.Floors(pairs), 0.5)
	for i := 1; i < len(pairs); i++ {
		if pairs[i-1].Floor <= usual && pairs[i].Floor <= usual {
			out = append(out, pairs[i])
		}
	}
	return out
}

// slowest logs the kinds of object with the largest latencies.
func (b *bench) slowest(pairs []table.Pair) {
	for k, m := range mix {
		var of []table.Pair
		for i := k; i < len(pairs); i += len(mix) {
			of = append(of, pairs[i])
		}
		if f := table.Figures(of); len(f) > 0 {
			fmt.Fprintf(b.log, "  %-45s p50 %s, p99 %s\n", m.what, table.Millis(table.Quantile(f, 0.5)), table.Millis(table.Quantile(f, 0.99)))
		}
	}
}

// question is one review.
type question struct {
	kind mixed
	path string
	body []byte
}

// check compares the answer with the expected one. A review that reached its time limit says so, and may allow any object.
func (q question) check(answer []byte) (cut bool, err error) {
	var review admissionv1.AdmissionReview
	if err := json.Unmarshal(answer, &review); err != nil {
		return false, fmt.Errorf("read the answer %q: %w", answer, err)
	}
	is := "allowed"
	switch r := review.Response; {
	case r == nil:
		is = "nothing"
	case !r.Allowed:
		is = "denied"
	case slices.Contains(r.Warnings, admission.CutShort):
		return true, nil
	case len(r.Warnings) > 0:
		is = "warned"
	}
	if is != q.kind.answer {
		return false, fmt.Errorf("%s: %s instead of %s: %s", q.kind.what, is, q.kind.answer, answer)
	}
	return false, nil
}
