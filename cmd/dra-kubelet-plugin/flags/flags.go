// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package flags parses the command line of the kubelet plugin. Each flag can also be set by an environment variable.
package flags

import (
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"gpu-dra-driver/cmd/envflags"
	"gpu-dra-driver/pkg/gpu"
	"gpu-dra-driver/pkg/gpu/health"
	"gpu-dra-driver/pkg/node/resourceslices"
	"gpu-dra-driver/pkg/wire/schedulerfault"
)

// Values of --health-reset.
const (
	resetNever    = "Never"
	ResetWhenIdle = "WhenIdle"
)

// Config holds the values of the flags.
type Config struct {
	NodeName, Kubeconfig, DriverName string

	NvidiaDriverRoot, ContainerDriverRoot, DevRoot string
	CDIRoot, CDIHookPath                           string

	KubeletPluginsDir, KubeletRegistrarDir, KubeletPodResourcesDir string

	ProcRoot, SysRoot, BootIDFile string

	HTTPEndpoint, MetricsPath, PprofPath string
	MetricsIdle                          bool
	HealthcheckPort                      int

	PodUID, PodNamespace string

	resourceslices.Settings
	migDevices, monitorDevices bool
	DeviceMetadata             bool
	AdoptExternalMIG           bool
	KeepComputeMode            bool
	ContainerMemoryLimits      bool
	MIGModeIdle                time.Duration

	MPSDir, SharingConfig, DemandConfigMap string

	schedulerVersion string
	// Scheduler is the version of the scheduler; the zero Version means that of the API server.
	Scheduler schedulerfault.Version

	VanishedClaimGrace time.Duration
	IgnoredProcesses   []string

	HealthReset                       string
	KernelLog                         string
	healthIgnoreXIDs, healthTaintXIDs []string
	// XIDs has the numbers of the two lists.
	XIDs health.Settings
	// Warnings are for the log.
	Warnings []string

	Verbosity   int
	ClearFaults string
	Version     bool
}

// New returns the flags, in the order of their reference. Parsing them sets the fields of c.
func New(c *Config) *pflag.FlagSet {
	fs := envflags.New("dra-kubelet-plugin")
	fs.StringVar(&c.NodeName, "node-name", "", "Name of the Node this plugin runs on. Required.")
	fs.StringVar(&c.Kubeconfig, "kubeconfig", "", "Kubeconfig file. Empty: the service account of the pod.")
	fs.StringVar(&c.DriverName, "driver-name", "gpu.nvidia.com",
		"Name of the driver for the kubelet and in published devices; their attributes and DeviceClasses are "+
			"named after it.")
	fs.StringVar(&c.NvidiaDriverRoot, "nvidia-driver-root", "/",
		"Root of the NVIDIA driver as the container runtime on the node sees it: / for a driver on the host, "+
			"/run/nvidia/driver for the GPU operator's driver container.")
	fs.StringVar(&c.ContainerDriverRoot, "container-driver-root", "/driver-root",
		"The same root as this process sees it.")
	fs.StringVar(&c.DevRoot, "dev-root", "",
		"Directory whose dev/ holds the GPUs' device nodes, at the same path for this process and the container "+
			"runtime. Empty: the driver root, or / for a driver root without device nodes.")
	fs.StringVar(&c.CDIRoot, "cdi-root", "/var/run/cdi", "Directory where the container runtime reads CDI specs.")
	fs.StringVar(&c.CDIHookPath, "nvidia-cdi-hook-path", "/usr/bin/nvidia-cdi-hook",
		"The nvidia-cdi-hook binary in this image. It is copied to the plugin's data directory, where the container "+
			"runtime can run it.")
	fs.StringVar(&c.KubeletPluginsDir, "kubelet-plugins-directory-path", "/var/lib/kubelet/plugins",
		"The kubelet's directory for plugin data. The plugin keeps records, its socket and the CDI hook in the "+
			"directory <driver-name> below it, which must be on a disk and at the same path on the node.")
	fs.StringVar(&c.KubeletRegistrarDir, "kubelet-registrar-directory-path", "/var/lib/kubelet/plugins_registry",
		"The kubelet's directory for plugin registration.")
	fs.StringVar(&c.KubeletPodResourcesDir, "kubelet-pod-resources-directory-path", "/var/lib/kubelet/pod-resources",
		"The kubelet's directory with the pod-resources socket. The plugin queries it before it unprepares a "+
			"deleted claim.")
	fs.StringVar(&c.ProcRoot, "proc-root", "/proc", "The node's /proc as this process sees it.")
	fs.StringVar(&c.SysRoot, "sys-root", "/sys", "The node's /sys as this process sees it.")
	fs.StringVar(&c.BootIDFile, "boot-id-file", "/proc/sys/kernel/random/boot_id",
		"File with the ID of the node's boot.")
	fs.StringVar(&c.HTTPEndpoint, "http-endpoint", "", "Address of the metrics server, such as \":8080\". Empty: none.")
	fs.StringVar(&c.MetricsPath, "metrics-path", "/metrics", "Path of the metrics on that server. Empty: none.")
	fs.BoolVar(&c.MetricsIdle, "metrics-idle", false,
		"Measure all GPUs all the time. If false, only GPUs of prepared claims are measured, because measuring can "+
			"delay another MIG mode or the unloading of the driver.")
	fs.StringVar(&c.PprofPath, "pprof-path", "",
		"Path of Go's profiles on that server, such as \"/debug/pprof\". Empty: none.")
	fs.IntVar(&c.HealthcheckPort, "healthcheck-port", 51515, "TCP port of the gRPC health service. Negative: none.")
	fs.StringVar(&c.PodUID, "pod-uid", "",
		"UID of this pod. If set, a newer instance can start while this one still runs, for updates with maxSurge; "+
			"needs a kubelet of 1.33 or newer.")
	fs.StringVar(&c.PodNamespace, "pod-namespace", "", "Namespace of this pod, for the log.")
	fs.BoolVar(&c.migDevices, "mig-devices", true,
		"Publish MIG partitions. If false, only those of claims stay published.")
	fs.BoolVar(&c.monitorDevices, "monitor-devices", true,
		"Publish a monitor device for each GPU. If false, only those of claims stay published.")
	fs.BoolVar(&c.DeviceMetadata, "device-metadata", true,
		"Give containers a file about the devices of each request, below "+
			"/var/run/kubernetes.io/dra-device-attributes. A claim that is prepared already keeps its files, or none.")
	fs.BoolVar(&c.AllowReset, "allow-gpu-reset", false,
		"Switch the MIG mode of idle GPUs even if that resets the GPU (Ampere). If false, such GPUs keep their "+
			"mode.")
	fs.BoolVar(&c.AdoptExternalMIG, "adopt-external-mig", false,
		"Destroy external MIG partitions and switch MIG off if a claim needs their place. If false, partitions "+
			"and modes that no claim owns stay, and the partitions are published.")
	fs.BoolVar(&c.KeepComputeMode, "mps-keep-compute-mode", false,
		"Leave the compute mode of GPUs that claims share by MPS as it is. Then a process that ignores the daemon "+
			"can use the whole GPU.")
	fs.BoolVar(&c.ContainerMemoryLimits, "container-memory-limits", false,
		"Limit the memory of all processes of a container together to its shares of a GPU, with drivers of CUDA 13.4 "+
			"and newer and cgroups of version 2. No machine with such a driver has run it yet. If false, claims that "+
			"have limits keep them.")
	fs.DurationVar(&c.MIGModeIdle, "mig-mode-idle", 10*time.Minute,
		"Idle time after which the driver switches MIG off on a GPU where it had switched MIG on. 0: only when a "+
			"claim needs the whole GPU.")
	fs.StringVar(&c.MPSDir, "mps-dir", "",
		"Directory of the MPS daemons and of mps-supervisor's socket, at the same path on the node. Empty: the "+
			"node has no MPS, and shares use time-slicing.")
	fs.StringVar(&c.SharingConfig, "sharing-config", "",
		"File with the node's sharing settings; a config file of NVIDIA's device plugin works too. The plugin "+
			"reloads a changed file. If the file is invalid, the previous settings stay in force. Empty: none.")
	fs.StringVar(&c.DemandConfigMap, "demand-configmap", "",
		"Name of the ConfigMap in the pod's namespace in which the controller lists the MIG profiles and groups that "+
			"the cluster asks for. Empty: the setting Auto publishes all of them.")
	fs.StringVar(&c.schedulerVersion, "scheduler-version", "",
		"Version of the cluster's scheduler, such as v1.36.3. For versions with known faults the plugin leaves out "+
			"devices that the scheduler would allocate wrongly. Empty: the version of the API server, and the oldest "+
			"one for an hour after an upgrade.")
	fs.DurationVar(&c.VanishedClaimGrace, "vanished-claim-grace", 5*time.Minute,
		"Time after the deletion of a prepared claim at which the plugin releases its devices without the kubelet's "+
			"call. No pod or process may use them any more. A claim of an earlier boot is released without it.")
	fs.StringSliceVar(&c.IgnoredProcesses, "ignored-processes", nil,
		"Names of further processes, separated by commas, that open GPUs without using them and do not delay such a "+
			"release. Known are NVIDIA's daemons, and each process that has every GPU of the node but not "+
			"/dev/nvidia-uvm open.")
	fs.StringSliceVar(&c.Evict, "health-evict", nil,
		"States of faulty GPUs, separated by commas, whose pods Kubernetes evicts by the taint's effect NoExecute: "+
			strings.Join(health.Evictable(), ", ")+".")
	fs.StringVar(&c.HealthReset, "health-reset", resetNever,
		"Reset a GPU by nvidia-smi -r if the driver asks for a reset: "+resetNever+", or "+ResetWhenIdle+
			" while no claim and no process "+
			"uses it.")
	fs.StringSliceVar(&c.healthIgnoreXIDs, "health-ignore-xids", nil,
		"XIDs, separated by commas, that are counted but neither taint a GPU nor are reported to pods.")
	fs.StringSliceVar(&c.healthTaintXIDs, "health-taint-xids", nil,
		"XIDs, separated by commas, that taint their GPU as "+health.Named+" until the node reboots or its driver is "+
			"reloaded, although NVIDIA's catalogue asks neither for a reset nor for a reboot.")
	fs.StringVar(&c.KernelLog, "kernel-log", "",
		"The node's /dev/kmsg as this process sees it. The plugin reads it for XIDs of while it was down or no claim "+
			"was prepared. Empty: it does not.")
	fs.IntVarP(&c.Verbosity, "v", "v", 2,
		"Verbosity of the log: 0 problems and configuration, 2 each claim prepared and unprepared, 4 details, 6 API "+
			"requests and calls of the kubelet.")
	fs.StringVar(&c.ClearFaults, "clear-faults", "",
		"PCI address of a GPU. The program removes the GPU's remembered faults, prints them and exits. Run it in the "+
			"plugin's container, with kubectl exec. The running plugin makes the GPU available within half a minute, "+
			"unless the driver still reports a fault.")
	fs.BoolVar(&c.Version, "version", false, "Print the version and exit.")
	return fs
}

// Parse reads the command line and the environment; see envflags.Parse.
func Parse(args, environ []string) (Config, error) {
	c, err := envflags.Parse(New, (*Config).validate, args, environ)
	for _, kv := range environ {
		c.legacy(strings.Cut(kv, "="))
	}
	return c, err
}

// legacy reads a variable of NVIDIA's device plugin or DRA driver. A value that cannot be read is only a warning.
func (c *Config) legacy(name, value string, _ bool) {
	if value == "" || name != "DP_DISABLE_HEALTHCHECKS" && name != "ADDITIONAL_XIDS_TO_IGNORE" {
		return
	}
	warn := func(text string) { c.Warnings = append(c.Warnings, name+"="+value+" "+text) }
	if name == "DP_DISABLE_HEALTHCHECKS" && (value == "all" || value == "xids") {
		for _, x := range health.XIDs {
			c.XIDs.Ignore = append(c.XIDs.Ignore, x.Code)
		}
		warn("ignores all XIDs; the driver's recovery actions still count. Use the chart value health.ignoreXIDs")
		return
	}
	more, err := xids(strings.Split(value, ","))
	if err != nil {
		warn("is not a list of XIDs and has no effect. Use the chart value health.ignoreXIDs")
		return
	}
	c.XIDs.Ignore = append(c.XIDs.Ignore, more...)
	warn("is read, but deprecated. Use the chart value health.ignoreXIDs")
}

func xids(fields []string) (out []uint64, err error) {
	for _, field := range fields {
		xid, err := strconv.ParseUint(strings.TrimSpace(field), 10, 32)
		if err != nil {
			return nil, fmt.Errorf("%q is not the number of an XID", field)
		}
		out = append(out, xid)
	}
	return out, nil
}

func (c *Config) validate() error {
	var problems envflags.Problems
	bad := problems.Add
	if c.NodeName == "" {
		bad("node-name", "must name the Node this runs on (in a pod: NODE_NAME from spec.nodeName)")
	}
	if problems := validation.IsDNS1123Subdomain(c.DriverName); len(problems) > 0 {
		bad("driver-name", "%q: %s", c.DriverName, strings.Join(problems, "; "))
	} else if len(c.DriverName) > 63 {
		bad("driver-name", "%q has %d characters, the API allows 63", c.DriverName, len(c.DriverName))
	}
	for flag, path := range map[string]string{
		"nvidia-driver-root":                   c.NvidiaDriverRoot,
		"container-driver-root":                c.ContainerDriverRoot,
		"cdi-root":                             c.CDIRoot,
		"kubelet-plugins-directory-path":       c.KubeletPluginsDir,
		"kubelet-registrar-directory-path":     c.KubeletRegistrarDir,
		"kubelet-pod-resources-directory-path": c.KubeletPodResourcesDir,
		"proc-root":                            c.ProcRoot,
		"sys-root":                             c.SysRoot,
		"boot-id-file":                         c.BootIDFile,
	} {
		if !filepath.IsAbs(path) {
			bad(flag, "%q is not an absolute path", path)
		}
	}
	for flag, path := range map[string]string{
		"dev-root": c.DevRoot, "mps-dir": c.MPSDir, "sharing-config": c.SharingConfig, "kernel-log": c.KernelLog,
	} {
		if path != "" && !filepath.IsAbs(path) {
			bad(flag, "%q is not an absolute path", path)
		}
	}
	for flag, path := range map[string]string{"metrics-path": c.MetricsPath, "pprof-path": c.PprofPath} {
		if path != "" && !strings.HasPrefix(path, "/") {
			bad(flag, "%q does not begin with a slash", path)
		}
	}
	if c.HealthcheckPort > 65535 {
		bad("healthcheck-port", "%d is not a port; a negative number turns the service off", c.HealthcheckPort)
	}
	if c.ClearFaults != "" {
		var err error
		if c.ClearFaults, err = gpu.CanonicalAddress(c.ClearFaults); err != nil {
			bad("clear-faults", "%v", err)
		}
	}
	c.NoPartitions, c.NoMonitors = !c.migDevices, !c.monitorDevices
	if c.HealthReset != resetNever && c.HealthReset != ResetWhenIdle {
		bad("health-reset", "%q is not one of %s, %s", c.HealthReset, resetNever, ResetWhenIdle)
	}
	for _, state := range c.Evict {
		if !slices.Contains(health.Evictable(), state) {
			bad("health-evict", "%q is not one of %s", state, strings.Join(health.Evictable(), ", "))
		}
	}
	var err error
	if c.schedulerVersion != "" {
		if c.Scheduler, err = schedulerfault.Parse(c.schedulerVersion); err != nil {
			bad("scheduler-version", "%v", err)
		}
	}
	if c.XIDs.Ignore, err = xids(c.healthIgnoreXIDs); err != nil {
		bad("health-ignore-xids", "%v", err)
	}
	if c.XIDs.Taint, err = xids(c.healthTaintXIDs); err != nil {
		bad("health-taint-xids", "%v", err)
	}
	for _, xid := range c.XIDs.Taint {
		if slices.Contains(c.XIDs.Ignore, xid) {
			bad("health-taint-xids", "%d is in --health-ignore-xids too", xid)
		}
	}
	if c.VanishedClaimGrace <= 0 {
		bad("vanished-claim-grace", "%s: must be more than zero", c.VanishedClaimGrace)
	}
	return problems.Err()
}
