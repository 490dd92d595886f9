// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package controllerflags is the controller's command line: one table from which flags and environment variables are
// parsed and their reference is generated.
package controllerflags

import (
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"gpu-dra-driver/internal/flagtable"
)

// Config is what the flags say.
type Config struct {
	Kubeconfig string
	DriverName string

	PodNamespace string

	LeaderElect bool
	LeaseName   string

	HTTPEndpoint   string
	HealthEndpoint string
	PprofEndpoint  string

	Webhook              bool
	WebhookPort          int
	WebhookService       string
	WebhookConfiguration string
	CertSecret           string
	CertDir              string
	RotateCerts          bool

	ModelClasses           bool
	ProfileClasses         bool
	ModelClassPrefix       string
	ExtendedResourcePrefix string
	ClassGrace             time.Duration

	NodeLabels bool

	Check string

	Verbosity int
	Version   bool
}

// What --check can ask for.
const (
	CheckInstallation = "installation"
	CheckUninstall    = "uninstall"
)

// Flag is one row of the table.
type Flag = flagtable.Flag[Config]

// Table is every flag, in the order of the reference.
var Table = []Flag{
	{Name: "kubeconfig", Default: "", Field: func(c *Config) any { return &c.Kubeconfig },
		Usage: "Kubeconfig file. Empty: the service account of the pod."},
	{Name: "driver-name", Default: "gpu.nvidia.com", Field: func(c *Config) any { return &c.DriverName },
		Usage: "Name under which the kubelet plugins publish devices."},
	{Name: "pod-namespace", Default: "", Field: func(c *Config) any { return &c.PodNamespace },
		Usage: "Namespace of this pod, for the lease and the certificate. Required."},
	{Name: "leader-elect", Default: true, Field: func(c *Config) any { return &c.LeaderElect },
		Usage: "Write DeviceClasses and node labels only while this instance leads. All instances review."},
	{Name: "lease-name", Default: "", Field: func(c *Config) any { return &c.LeaseName },
		Usage: "Name of the Lease that says who leads. Empty: dra-controller.<driver-name>."},
	{Name: "http-endpoint", Default: "", Field: func(c *Config) any { return &c.HTTPEndpoint },
		Usage: "Address of the metrics server, as \":8080\", which serves /metrics. Empty: none."},
	{Name: "health-endpoint", Default: "", Field: func(c *Config) any { return &c.HealthEndpoint },
		Usage: "Address of the server of /healthz and /readyz, as \":8081\". Empty: none."},
	{Name: "pprof-endpoint", Default: "", Field: func(c *Config) any { return &c.PprofEndpoint },
		Usage: "Address of the server of Go's profiles, as \":6060\", which serves /debug/pprof. Empty: none."},
	{Name: "webhook", Default: true, Field: func(c *Config) any { return &c.Webhook },
		Usage: "Review ResourceClaims, ResourceClaimTemplates and DeviceClasses."},
	{Name: "webhook-port", Default: 9443, Field: func(c *Config) any { return &c.WebhookPort },
		Usage: "TCP port of the webhook."},
	{Name: "webhook-service", Default: "", Field: func(c *Config) any { return &c.WebhookService },
		Usage: "Name of the Service before it, for which its certificate is made."},
	{Name: "webhook-configuration", Default: "", Field: func(c *Config) any { return &c.WebhookConfiguration },
		Usage: "Name of the ValidatingWebhookConfiguration that is told the certificate's authority."},
	{Name: "cert-secret", Default: "", Field: func(c *Config) any { return &c.CertSecret },
		Usage: "Name of the Secret with the webhook's certificate, in this pod's namespace. With --rotate-certs it is made where there is none, and goes with the Service."},
	{Name: "cert-dir", Default: "/run/certs", Field: func(c *Config) any { return &c.CertDir },
		Usage: "Directory to which the certificate is copied, for this process alone."},
	{Name: "rotate-certs", Default: true, Field: func(c *Config) any { return &c.RotateCerts },
		Usage: "Make the certificate and renew it in time. Without it somebody else keeps the Secret, such as cert-manager."},
	{Name: "model-classes", Default: true, Field: func(c *Config) any { return &c.ModelClasses },
		Usage: "Keep a DeviceClass for each GPU model of the cluster."},
	{Name: "profile-classes", Default: true, Field: func(c *Config) any { return &c.ProfileClasses },
		Usage: "Keep a DeviceClass for each MIG profile that GPUs of the cluster can be cut into."},
	{Name: "model-class-prefix", Default: "", Field: func(c *Config) any { return &c.ModelClassPrefix },
		Usage: "Begins the names of the models' classes."},
	{Name: "extended-resource-prefix", Default: "nvidia.com/mig-", Field: func(c *Config) any { return &c.ExtendedResourcePrefix },
		Usage: "Begins the extended resource names under which pods without a claim get a partition of a profile. Empty: none."},
	{Name: "class-grace", Default: 10 * time.Minute, Field: func(c *Config) any { return &c.ClassGrace },
		Usage: "How long a model or profile must be gone from the cluster before its class is removed, or a node's GPUs before its labels are."},
	{Name: "node-labels", Default: true, Field: func(c *Config) any { return &c.NodeLabels },
		Usage: "Label nodes as NVIDIA's feature discovery does. Labels that others wrote stay."},
	{Name: "check", Default: "", Field: func(c *Config) any { return &c.Check },
		Usage: "Check something once, say what was found, and end: installation, whether the driver works; uninstall, whether no claim has devices of the driver."},
	{Name: "v", Short: "v", Default: 2, Field: func(c *Config) any { return &c.Verbosity },
		Usage: "Verbosity of the log: 0 problems and configuration, 2 what is written, 4 details, 6 API requests."},
	{Name: "version", Default: false, Field: func(c *Config) any { return &c.Version },
		Usage: "Print the version and exit."},
}

// ErrHelp says that --help was given; the usage has been printed.
var ErrHelp = flagtable.ErrHelp

var set = flagtable.Set[Config]{Program: "dra-controller", Table: Table}

// Parse reads the command line, without the program's name, and the environment, as KEY=value. The error says which
// flag, what was given and what is allowed.
func Parse(args, environ []string) (Config, error) {
	c, err := set.Parse(args, environ)
	if err != nil || c.Version {
		return c, err
	}
	if c.LeaseName == "" {
		c.LeaseName = "dra-controller." + c.DriverName
	}
	return c, c.validate()
}

// Usage is the help text.
func Usage() string { return set.Usage() }

func (c *Config) validate() error {
	var p flagtable.Problems
	if problems := validation.IsDNS1123Subdomain(c.DriverName); len(problems) > 0 {
		p.Add("driver-name", "%q: %s", c.DriverName, strings.Join(problems, "; "))
	}
	if c.PodNamespace == "" {
		p.Add("pod-namespace", "must name the namespace this runs in (in a pod: POD_NAMESPACE from metadata.namespace)")
	}
	switch c.Check {
	case "", CheckInstallation, CheckUninstall:
	default:
		p.Add("check", "%q is not known, use %s or %s", c.Check, CheckInstallation, CheckUninstall)
	}
	if c.Webhook && c.Check == "" {
		for flag, value := range map[string]string{"webhook-service": c.WebhookService, "webhook-configuration": c.WebhookConfiguration, "cert-secret": c.CertSecret, "cert-dir": c.CertDir} {
			if value == "" {
				p.Add(flag, "is needed for the webhook; --webhook=false does without")
			}
		}
		if c.WebhookPort < 1 || c.WebhookPort > 65535 {
			p.Add("webhook-port", "%d is not a port", c.WebhookPort)
		}
	}
	if c.ClassGrace <= 0 {
		p.Add("class-grace", "%s: must be more than zero", c.ClassGrace)
	}
	return p.Err()
}
