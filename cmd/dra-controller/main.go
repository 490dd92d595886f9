// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command dra-controller manages a cluster's DeviceClasses and node labels, and validates claims.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime/debug"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/record"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"gpu-dra-driver/cmd/dra-controller/flags"
	"gpu-dra-driver/cmd/envflags"
	"gpu-dra-driver/cmd/setup"
	"gpu-dra-driver/internal/peers"
	"gpu-dra-driver/pkg/cluster/controller"
	"gpu-dra-driver/pkg/cluster/deviceclasses"
	"gpu-dra-driver/pkg/cluster/metrics"
	"gpu-dra-driver/pkg/cluster/podevents"
	"gpu-dra-driver/pkg/cluster/read"
)

// run is the program. It returns 0 after a signal or a successful check, 1 after an error or a failed check, and 2
// for an invalid command line.
func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	c, err := flags.Parse(args, environ)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		fmt.Fprint(stdout, "dra-controller manages a cluster's DeviceClasses and node labels, and validates "+
			"claims.\n\n"+envflags.Usage(flags.New(new(flags.Config))))
		return 0
	case err != nil:
		fmt.Fprintf(stderr, "%v\nsee dra-controller --help\n", err)
		return 2
	case c.Version:
		fmt.Fprintln(stdout, version)
		return 0
	}
	setup.StartLogging(c.Verbosity, stderr)
	defer klog.Flush()
	config, err := setup.ClientConfig(c.Kubeconfig, "dra-controller/"+version)
	if err != nil {
		err = fmt.Errorf("reach the API server: %w; outside of a pod, give --kubeconfig", err)
	} else if c.Check != "" {
		err = check(ctx, c, config, stdout)
	} else {
		klog.Background().Info("Starting", "version", version, "driver", c.DriverName, "namespace", c.PodNamespace)
		err = serve(ctx, c, config)
	}
	if err != nil {
		if c.Check != "" {
			fmt.Fprintln(stdout, err)
		}
		klog.Background().Error(err, "Ending")
		return 1
	}
	klog.Background().Info("Shutting down")
	return 0
}

// program has what its parts share.
type program struct {
	flags.Config
	manager.Manager
	client   kubernetes.Interface
	custom   dynamic.Interface
	rules    *read.Rules
	control  *controller.Controller
	recorder record.EventRecorder
	reviews  *metrics.Reviews
	webhooks map[string]http.Handler
	// watcher sees all requests to the webhooks; it can be nil.
	watcher watcher
	ready   *healthz.Handler
}

type watcher interface {
	Watch(h http.Handler) http.Handler
}

// serve constructs the controllers and runs them until the context ends.
func serve(ctx context.Context, c flags.Config, config *rest.Config) error {
	ctrl.SetLogger(klog.Background())
	if _, set := os.LookupEnv("GOMEMLIMIT"); c.MemoryLimit > 0 && !set {
		debug.SetMemoryLimit(c.MemoryLimit / 10 * 9) // The kernel ends a process at its limit.
	}
	m, err := ctrl.NewManager(config, ctrl.Options{
		Scheme:         scheme.Scheme,
		Metrics:        metricsserver.Options{BindAddress: noServer},
		LeaderElection: c.LeaderElect, LeaderElectionID: c.LeaseName, LeaderElectionNamespace: c.PodNamespace,
		// A new version becomes the leader at once, before the old version's lease expires.
		LeaderElectionReleaseOnCancel: true,
		HealthProbeBindAddress:        noServer, PprofBindAddress: c.PprofEndpoint,
	})
	if err != nil {
		return fmt.Errorf("prepare to run: %w", err)
	}
	client, err := kubernetes.NewForConfig(config)
	custom, failed := dynamic.NewForConfig(config)
	if err := errors.Join(err, failed); err != nil {
		return fmt.Errorf("make a client for the API server: %w", err)
	}
	const recentEvents = 512 // Objects whose Events are remembered, to count repetitions.
	events := record.NewBroadcaster(record.WithCorrelatorOptions(record.CorrelatorOptions{LRUCacheSize: recentEvents}))
	defer events.Shutdown()
	events.StartRecordingToSink(&typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events("")})
	recorder := events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "dra-controller"})
	control := controller.New(c.DriverName, client, controller.Options{
		LabelNodes: c.NodeLabels, Grace: c.ClassGrace, OnDemand: c.DemandConfigMap != "", Auto: c.Auto,
		Events: recorder, Waiting: c.PodEvents || c.Preemption, Preemption: c.Preemption,
		Prices: c.GPUPrices,
		Classes: deviceclasses.Options{
			GPUs: c.GPUClass, GPUResource: c.GPUResourceName,
			Driver: c.DriverName, Models: c.ModelClasses, Profiles: c.ProfileClasses, Groups: c.GroupClasses,
			ModelPrefix: c.ModelClassPrefix, ResourcePrefix: c.ExtendedResourcePrefix,
		},
	})
	ctrlmetrics.Registry.MustRegister(metrics.Clusters(control.Cluster))
	reviews := metrics.NewReviews(ctrlmetrics.Registry, version)
	err = errors.Join(
		m.Add(always{control.Observe}),
		m.Add(manager.RunnableFunc(control.Lead)),
	)
	p := &program{
		Config:   c,
		Manager:  m,
		client:   client,
		custom:   custom,
		rules:    read.NewRules(custom),
		control:  control,
		recorder: recorder,
		reviews:  reviews,
		webhooks: controller.Webhooks(control, reviews, c.DenyUnsatisfiable),
	}
	if err == nil && c.PodEvents {
		o := podevents.Options{Driver: c.DriverName, NameOthers: c.NameOthers}
		err = m.Add(manager.RunnableFunc(podevents.New(client, p.rules, control, o).Run))
	}
	p.ready = &healthz.Handler{Checks: map[string]healthz.Checker{"cluster": func(*http.Request) error {
		return control.Synced()
	}}}
	err = errors.Join(err, addDemand(p), addPreemption(p), addBudgets(p), addPodShares(p))
	if err == nil && c.Webhook {
		test := controller.SelfTest{
			Checks:  checks(c, client, io.Discard),
			Service: c.WebhookService,
			Events:  recorder,
			Report:  reviews.SetReachable,
		}
		err = errors.Join(
			addWebhook(p),
			m.Add(manager.RunnableFunc(test.Run)),
		)
	}
	if err == nil && c.HTTPEndpoint != "" {
		mux := http.NewServeMux()
		mux.Handle("/metrics", promhttp.HandlerFor(ctrlmetrics.Registry,
			promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError}))
		err = addServer(m, "metrics", c.HTTPEndpoint, mux)
	}
	if err == nil && c.HealthEndpoint != "" {
		mux := http.NewServeMux()
		for path, h := range map[string]http.Handler{"/healthz": &healthz.Handler{}, "/readyz": p.ready} {
			mux.Handle(path, http.StripPrefix(path, h))
			mux.Handle(path+"/", http.StripPrefix(path, h)) // A single check.
		}
		err = addServer(m, "health", c.HealthEndpoint, mux)
	}
	if err != nil {
		return fmt.Errorf("prepare to run: %w", err)
	}
	if err := m.Start(ctx); err != nil {
		return fmt.Errorf("run: %w", err)
	}
	return nil
}

func addWebhook(p *program) error {
	service := ""
	if p.RotateCerts {
		service = p.WebhookService
	}
	certificate := controller.NewCertificate(p.client, p.PodNamespace, p.CertSecret, service, p.WebhookConfiguration)
	p.ready.Checks["webhook"] = func(*http.Request) error {
		_, err := certificate.Get(nil)
		return err
	}
	server, err := newWebhook(p.Config, fmt.Sprintf(":%d", p.WebhookPort), certificate.Get, p.webhooks)
	if err != nil {
		return err
	}
	if p.watcher != nil {
		server.Server.Handler = p.watcher.Watch(server.Server.Handler)
	}
	return errors.Join(p.Add(always{certificate.Run}), p.Add(server))
}

// webhookLimits and otherLimits bound the servers, which any pod reaches. An API server waits 5 s for a review, and
// sends an object, its old version and their frame. A handshake and a connection take 50 kB.
var (
	webhookLimits = peers.Limits{Connections: 1024, Turns: 16, Body: 4 << 20, Bodies: 32 << 20, Time: 5 * time.Second}
	otherLimits   = peers.Limits{Connections: 256, Turns: 4, Body: 64 << 10, Bodies: 16 << 20, Time: 10 * time.Second}
)

func newWebhook(
	c flags.Config, address string, certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error),
	handlers map[string]http.Handler,
) (*manager.Server, error) {
	mux := http.NewServeMux()
	for path, handler := range handlers {
		if c.ClientAuthorities != nil {
			handler = controller.OnlyClients(handler)
		}
		mux.Handle(path, handler)
	}
	server, err := newServer("webhook", address, mux, webhookLimits)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{GetCertificate: certificate}
	if c.ClientAuthorities != nil {
		config.ClientCAs, config.ClientAuth = c.ClientAuthorities, tls.VerifyClientCertIfGiven
	}
	server.Listener = tls.NewListener(server.Listener, config)
	return server, nil
}

func addServer(m manager.Manager, name, address string, h http.Handler) error {
	server, err := newServer(name, address, h, otherLimits)
	if err != nil {
		return err
	}
	return m.Add(server)
}

// newServer returns a server that listens already. It runs on each instance.
func newServer(name, address string, h http.Handler, l peers.Limits) (*manager.Server, error) {
	listener, err := peers.Listen(address, l)
	if err != nil {
		return nil, fmt.Errorf("listen for the server of %s: %w", name, err)
	}
	return &manager.Server{Name: name, Server: peers.NewServer(h, l), Listener: listener, ShutdownTimeout: &l.Time}, nil
}

// always is a part of the program that runs on each instance. Other parts start when this instance becomes the leader.
type always struct{ manager.RunnableFunc }

func (always) NeedLeaderElection() bool { return false }

// noServer is controller-runtime's value for no server: its own servers have no bounds.
const noServer = "0"

// checkFor is the time limit of a check.
const checkFor = 50 * time.Second

// check runs the check that the flags select, and prints its result.
func check(ctx context.Context, c flags.Config, config *rest.Config, out io.Writer) error {
	ctx, cancel := context.WithTimeout(ctx, checkFor)
	defer cancel()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client for the API server: %w", err)
	}
	switch c.Check {
	case flags.CheckInstallation:
		return checks(c, client, out).Installation(ctx)
	case flags.CheckUninstall:
		return checks(c, client, out).Uninstall(ctx)
	}
	return errors.New("unknown check")
}

func checks(c flags.Config, client kubernetes.Interface, out io.Writer) controller.Checks {
	return controller.Checks{
		Client:    client,
		Driver:    c.DriverName,
		Namespace: c.PodNamespace,
		Webhook:   c.Webhook,
		Port:      c.WebhookPort,
		Out:       out,
	}
}

// version is set by the build.
var version = "unknown"

func main() { envflags.Main(run) }
