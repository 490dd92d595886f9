// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package flags parses the command line of the controller. Each flag can also be set by an environment variable.
package flags

import (
	"cmp"
	"crypto/x509"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"gpu-dra-driver/cmd/envflags"
	"gpu-dra-driver/pkg/gpu"
)

// Config holds the values of the flags.
type Config struct {
	Kubeconfig, DriverName, PodNamespace string

	LeaderElect bool
	LeaseName   string

	HTTPEndpoint, HealthEndpoint, PprofEndpoint string

	Webhook, RotateCerts, DenyUnsatisfiable, Budgets bool
	WebhookPort                                      int
	WebhookService, WebhookConfiguration, CertSecret string
	// ClientAuthorities are the certificates in WebhookClientCA, or nil.
	WebhookClientCA   string
	ClientAuthorities *x509.CertPool

	GPUClass, ModelClasses                   bool
	ProfileClasses, GroupClasses             bool
	GPUResourceName                          string
	ModelClassPrefix, ExtendedResourcePrefix string
	ClassGrace                               time.Duration

	SharesOnDemand bool
	// MaxServingNodes is 0 for no limit.
	MaxServingNodes int
	MemoryLimit     int64
	// Auto has the values of --auto-kinds.
	Auto []gpu.Kind

	gpuPrices map[string]string
	// GPUPrices has the numbers of that map.
	GPUPrices map[string]float64

	NodeLabels bool
	PodShares  bool
	PodEvents  bool
	NameOthers bool
	// Preemption also needs the rights that the chart gives with its value.
	Preemption, ViolateBudgets      bool
	ExemptGroups                    bool
	ExemptNamespaces, ExemptClasses []string
	DemandConfigMap                 string
	autoKinds                       []string
	Check                           string
	Verbosity                       int
	Version                         bool
}

// The values of --check.
const (
	CheckInstallation = "installation"
	CheckUninstall    = "uninstall"
)

// New returns the flags, in the order of their reference. Parsing them sets the fields of c.
func New(c *Config) *pflag.FlagSet {
	fs := envflags.New("dra-controller")
	fs.StringVar(&c.Kubeconfig, "kubeconfig", "", "Kubeconfig file. Empty: the service account of the pod.")
	fs.StringVar(&c.DriverName, "driver-name", "gpu.nvidia.com",
		"Name under which the kubelet plugins publish devices.")
	fs.StringVar(&c.PodNamespace, "pod-namespace", "",
		"Namespace of this pod, for the lease and the certificate. Required.")
	fs.BoolVar(&c.LeaderElect, "leader-elect", true,
		"Write DeviceClasses and node labels only while this instance is the leader. All instances validate claims.")
	fs.StringVar(&c.LeaseName, "lease-name", "",
		"Name of the Lease for leader election. Empty: dra-controller.<driver-name>.")
	fs.StringVar(&c.HTTPEndpoint, "http-endpoint", "",
		"Address of the metrics server (/metrics), such as \":8080\". Empty: none.")
	fs.StringVar(&c.HealthEndpoint, "health-endpoint", "",
		"Address of the server of /healthz and /readyz, such as \":8081\". Empty: none.")
	fs.StringVar(&c.PprofEndpoint, "pprof-endpoint", "",
		"Address of the server of Go's profiles (/debug/pprof), such as \":6060\". Empty: none.")
	fs.BoolVar(&c.Webhook, "webhook", true, "Validate ResourceClaims, ResourceClaimTemplates and DeviceClasses.")
	fs.IntVar(&c.WebhookPort, "webhook-port", 9443, "TCP port of the webhook.")
	fs.StringVar(&c.WebhookService, "webhook-service", "",
		"Name of the webhook's Service. The certificate is issued for it.")
	fs.StringVar(&c.WebhookConfiguration, "webhook-configuration", "",
		"Name of the ValidatingWebhookConfiguration. The controller writes the certificate's authority to it, and "+
			"the secret path of reviews under budgets unless --webhook-client-ca is set.")
	fs.StringVar(&c.CertSecret, "cert-secret", "",
		"Name of the Secret with the webhook's certificate, in this pod's namespace. With --rotate-certs the "+
			"controller creates a missing Secret, and the Service owns it.")
	fs.BoolVar(&c.RotateCerts, "rotate-certs", true,
		"Create and renew the webhook's certificate. If false, another controller such as cert-manager writes the "+
			"Secret.")
	fs.StringVar(&c.WebhookClientCA, "webhook-client-ca", "",
		"Certificates of authorities, in PEM. The webhook then answers only clients with a certificate of one of "+
			"them. Empty: every client, but reviews under budgets need a secret path.")
	fs.BoolVar(&c.DenyUnsatisfiable, "deny-unsatisfiable", false,
		"Deny claims and claim templates that no node could satisfy, even an empty one. False: only warn. For "+
			"clusters of fixed size: an autoscaler adds no node for a denied claim.")
	fs.BoolVar(&c.Budgets, "budgets", false,
		"Enforce the GPU budgets of namespaces. Needs --webhook and the CustomResourceDefinition of the chart.")
	fs.BoolVar(&c.GPUClass, "gpu-class", false,
		"Create the chart's DeviceClass of all GPUs again, which has the driver's name, 10 s after its deletion.")
	fs.StringVar(&c.GPUResourceName, "gpu-resource-name", "",
		"Extended resource name of that class, such as nvidia.com/gpu. Empty: none.")
	fs.BoolVar(&c.ModelClasses, "model-classes", true, "Create a DeviceClass for each GPU model of the cluster.")
	fs.BoolVar(&c.ProfileClasses, "profile-classes", true,
		"Create a DeviceClass for each MIG profile that the cluster's GPUs support.")
	fs.BoolVar(&c.GroupClasses, "group-classes", true,
		"Create a DeviceClass for each size of NVLink groups in the cluster, such as nvlink-4.<driver-name>.")
	fs.StringVar(&c.ModelClassPrefix, "model-class-prefix", "", "Prefix of the names of the models' classes.")
	fs.StringVar(&c.ExtendedResourcePrefix, "extended-resource-prefix", "nvidia.com/mig-",
		"Prefix of the extended resource names by which pods without a claim request a partition of a profile. "+
			"Empty: none.")
	fs.DurationVar(&c.ClassGrace, "class-grace", 10*time.Minute,
		"Time between the removal of the last GPU of a model, profile or group size and the removal of its class; "+
			"also between the removal of a node's last GPU and the removal of its labels.")
	fs.BoolVar(&c.NodeLabels, "node-labels", true,
		"Label nodes as NVIDIA's feature discovery does. Labels of other writers stay.")
	fs.BoolVar(&c.PodShares, "pod-shares", false,
		"Write the claim templates of pods that ask for a share of a GPU without a claim. This needs the chart's "+
			"MutatingAdmissionPolicy, which has pods name them.")
	fs.BoolVar(&c.PodEvents, "pod-events", true,
		"Write one Event on each pod that waits for devices for more than 20 s, with the answer of `kubectl gpu why`.")
	fs.BoolVar(&c.NameOthers, "pod-events-name-others", false,
		"Name claims and pods of other namespaces in these Events, instead of counting them.")
	fs.BoolVar(&c.Preemption, "preemption", false,
		"Evict pods of lower priority for a pod that waits for nothing but devices. Kubernetes' scheduler does so "+
			"for CPU and memory only.")
	fs.BoolVar(&c.ViolateBudgets, "preemption-violate-budgets", false,
		"Delete pods whose eviction a PodDisruptionBudget refuses, if no other pods suffice.")
	fs.StringSliceVar(&c.ExemptNamespaces, "preemption-exempt-namespaces", nil,
		"Namespaces, separated by commas, whose pods are never evicted for a pod of higher priority.")
	fs.StringSliceVar(&c.ExemptClasses, "preemption-exempt-classes", nil,
		"PriorityClasses, separated by commas, whose pods are never evicted for a pod of higher priority.")
	fs.BoolVar(&c.ExemptGroups, "preemption-exempt-groups", true,
		"Evict no pod that a Workload of Kueue or a PodGroup manages. A label of the pod counts only if this "+
			"object exists.")
	fs.StringVar(&c.DemandConfigMap, "demand-configmap", "",
		"Name of the ConfigMap in the pod's namespace to write the devices into that the cluster asks for. "+
			"Nodes with the setting Auto publish these. Empty: none.")
	fs.StringSliceVar(&c.autoKinds, "auto-kinds", nil,
		"Kinds of devices, separated by commas, that nodes do not publish until the cluster asks for them (the "+
			"setting Auto): nvlink-group, monitor. Their classes stay, and reviews of claims know these devices.")
	fs.Int64Var(&c.MemoryLimit, "memory-limit", 0,
		"Limit of the container's memory in bytes. The garbage collector works more as the heap nears nine tenths of "+
			"it, unless GOMEMLIMIT is set. 0: no limit.")
	fs.IntVar(&c.MaxServingNodes, "max-serving-nodes", 0,
		"Most nodes that publish partitions, groups or shares because the cluster asks for them, apart from nodes "+
			"with such claims. 0: no limit, but on Kubernetes 1.36, whose scheduler takes long with many.")
	fs.BoolVar(&c.SharesOnDemand, "shares-on-demand", false,
		"Nodes share GPUs only while the cluster asks for shares (the setting Auto). This needs the chart's "+
			"MutatingAdmissionPolicy: without it, a claim for a share would get a whole GPU.")
	fs.StringToStringVar(&c.gpuPrices, "gpu-prices", nil,
		"Price of a GPU for an hour, by model, such as \"NVIDIA L40S=0.8\", for the metric gpu_dra_gpu_hourly_cost.")
	fs.StringVar(&c.Check, "check", "",
		"Run one check, print its result and exit. installation: the driver works. uninstall: no claim has devices "+
			"of the driver.")
	fs.IntVarP(&c.Verbosity, "v", "v", 2,
		"Verbosity of the log: 0 problems and configuration, 2 written objects, 4 details, 6 API requests.")
	fs.BoolVar(&c.Version, "version", false, "Print the version and exit.")
	return fs
}

// Parse reads the command line and the environment; see envflags.Parse.
func Parse(args, environ []string) (Config, error) {
	return envflags.Parse(New, (*Config).complete, args, environ)
}

func (c *Config) complete() error {
	c.LeaseName = cmp.Or(c.LeaseName, "dra-controller."+c.DriverName)
	var p envflags.Problems
	if problems := validation.IsDNS1123Subdomain(c.DriverName); len(problems) > 0 {
		p.Add("driver-name", "%q: %s", c.DriverName, strings.Join(problems, "; "))
	}
	if c.PodNamespace == "" {
		p.Add("pod-namespace", "must name the namespace of this process (in a pod: POD_NAMESPACE from "+
			"metadata.namespace)")
	}
	switch c.Check {
	case "", CheckInstallation, CheckUninstall:
	default:
		p.Add("check", "%q is not known, use %s or %s", c.Check, CheckInstallation, CheckUninstall)
	}
	if c.Webhook && c.Check == "" {
		for flag, value := range map[string]string{"webhook-service": c.WebhookService,
			"webhook-configuration": c.WebhookConfiguration, "cert-secret": c.CertSecret} {
			if value == "" {
				p.Add(flag, "is required for the webhook; to run without a webhook, use --webhook=false")
			}
		}
		if c.WebhookPort < 1 || c.WebhookPort > 65535 {
			p.Add("webhook-port", "%d is not a port", c.WebhookPort)
		}
	}
	if c.WebhookClientCA != "" {
		c.ClientAuthorities = x509.NewCertPool()
		if !c.ClientAuthorities.AppendCertsFromPEM([]byte(c.WebhookClientCA)) {
			p.Add("webhook-client-ca", "contains no certificate in PEM")
		}
	}
	c.GPUPrices = map[string]float64{}
	for model, text := range c.gpuPrices {
		price, err := strconv.ParseFloat(text, 64)
		if err != nil || !(price >= 0) || math.IsInf(price, 0) {
			p.Add("gpu-prices", "%s=%q: must be a number, 0 or more", model, text)
		}
		c.GPUPrices[model] = price
	}
	for _, kind := range c.autoKinds {
		if k := gpu.Kind(kind); k != gpu.KindGroup && k != gpu.KindMonitor {
			p.Add("auto-kinds", "%q is not known, use %s or %s", kind, gpu.KindGroup, gpu.KindMonitor)
		}
		c.Auto = append(c.Auto, gpu.Kind(kind))
	}
	if c.ClassGrace <= 0 {
		p.Add("class-grace", "%s: must be more than zero", c.ClassGrace)
	}
	if c.MaxServingNodes < 0 {
		p.Add("max-serving-nodes", "%d: must be 0 or more", c.MaxServingNodes)
	}
	return p.Err()
}
