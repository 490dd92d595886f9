//go:build e2e

// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"gpu-dra-driver/test/dashboard"
	"gpu-dra-driver/test/e2e/env"
)

// Variables with the paths of the programs, which hack/test-monitoring.sh builds.
const serverProgram, toolProgram = "PROMETHEUS", "PROMTOOL"

// prometheus is a server in the network of the cluster.
type prometheus struct {
	*env.Env
	node, address string
	began         time.Time
	stop          func()
}

const prometheusPort = "9090"

var serverOfKubeconfig = regexp.MustCompile(`server: \S+`)

// scrapeInterval is also that of the rules.
const scrapeInterval = 2 * time.Second

// startPrometheus runs a server with the monitors of the cluster and with rules. It listens on the node's address, where the
// API server reaches it for query.
func startPrometheus(ctx context.Context, e *env.Env, dir string, rules []byte) (*prometheus, error) {
	nodes, err := e.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var scrapes []any
	var monitors struct{ Items []monitor }
	out, err := e.Kubectl(ctx, "get", "podmonitors,servicemonitors", "-n", env.Namespace, "-o", "json")
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal([]byte(out), &monitors); err != nil {
		return nil, err
	}
	for _, m := range monitors.Items {
		scrapes = append(scrapes, m.scrape("kubeconfig"))
	}
	// The file is for clients outside of the node's network.
	kubeconfig, err := os.ReadFile(os.Getenv("KUBECONFIG"))
	if err != nil {
		return nil, err
	}
	kubeconfig = serverOfKubeconfig.ReplaceAll(kubeconfig, []byte("server: https://10.96.0.1:443"))
	config, err := yaml.Marshal(object{
		"global":     object{"scrape_interval": scrapeInterval.String(), "scrape_timeout": scrapeInterval.String(), "evaluation_interval": scrapeInterval.String()},
		"rule_files": []string{"rules.yaml"}, "scrape_configs": scrapes,
	})
	if err != nil {
		return nil, err
	}
	for name, data := range map[string][]byte{"prometheus.yaml": config, "rules.yaml": rules, "kubeconfig": kubeconfig} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o600); err != nil {
			return nil, err
		}
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		return nil, err
	}
	address := nodes.Items[0].Status.Addresses[0].Address + ":" + prometheusPort
	running, cancel := context.WithCancel(context.WithoutCancel(ctx))
	cmd := exec.CommandContext(running, e.Onenode, "exec", "--dir", e.Dir, "--", os.Getenv(serverProgram),
		"--config.file="+filepath.Join(dir, "prometheus.yaml"), "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	if err := cmd.Start(); err != nil {
		cancel()
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	p := &prometheus{Env: e, node: nodes.Items[0].Name, address: address, began: time.Now(), stop: func() { cancel(); <-ended; _ = log.Close() }}
	err = e.Eventually(ctx, "Prometheus scrapes plugin and controller", time.Minute, func(ctx context.Context) (bool, string) {
		select {
		case err := <-ended:
			ended <- err
			text, _ := os.ReadFile(log.Name())
			return false, fmt.Sprintf("it ended: %v: %s", err, text)
		default:
		}
		up, err := p.query(ctx, "up == 1")
		return err == nil && len(up) >= len(scrapes), fmt.Sprint(up, err)
	})
	if err != nil {
		p.stop()
		return nil, err
	}
	return p, nil
}

// sample is a result of a query.
type sample struct {
	Metric map[string]string
	Value  [2]any
}

func (s sample) value() float64 {
	text, _ := s.Value[1].(string)
	v, _ := strconv.ParseFloat(text, 64)
	return v
}

// query returns the result of an instant query.
func (p *prometheus) query(ctx context.Context, query string) ([]sample, error) {
	return results[sample](ctx, p, "vector", "query", map[string]string{"query": query})
}

// series returns the results of a range query, or of an instant query at the end of the window, for a panel.
func (p *prometheus) series(ctx context.Context, query string, w dashboard.Window, instant bool) (out []dashboard.Series, err error) {
	kind, path, params := "matrix", "query_range", map[string]string{
		"query": query, "start": w.From.Format(time.RFC3339), "end": w.To.Format(time.RFC3339), "step": w.Step.String(),
	}
	if instant {
		kind, path, params = "vector", "query", map[string]string{"query": query, "time": w.To.Format(time.RFC3339)}
	}
	found, err := results[struct {
		Metric map[string]string
		Value  *[2]any
		Values [][2]any
	}](ctx, p, kind, path, params)
	for _, f := range found {
		if f.Value != nil {
			f.Values = append(f.Values, *f.Value)
		}
		s := dashboard.Series{Labels: f.Metric}
		for _, v := range f.Values {
			at, _ := v[0].(float64)
			s.Points = append(s.Points, dashboard.Point{Time: at, Value: sample{Value: v}.value()})
		}
		out = append(out, s)
	}
	return out, err
}

func results[T any](ctx context.Context, p *prometheus, kind, path string, params map[string]string) ([]T, error) {
	request := p.Client.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/http:" + p.node + ":" + prometheusPort + "/proxy/api/v1/" + path)
	for name, value := range params {
		request = request.Param(name, value)
	}
	data, err := request.DoRaw(ctx)
	query := params["query"]
	var answer struct {
		Error string
		Data  struct {
			ResultType string
			Result     json.RawMessage
		}
	}
	if decode := json.Unmarshal(data, &answer); decode == nil && answer.Error != "" {
		return nil, fmt.Errorf("%s: %s", query, answer.Error)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", query, err, data)
	}
	if answer.Data.ResultType != kind {
		return nil, fmt.Errorf("%s: the result is a %s", query, answer.Data.ResultType)
	}
	var out []T
	return out, json.Unmarshal(answer.Data.Result, &out)
}
