// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Package pluginflags is the kubelet plugin's command line: one table from which flags and environment variables are
// parsed and their reference is generated.
package pluginflags

import (
	"time"

	"gpu-dra-driver/internal/flagtable"
)

// Config is what the flags say.
type Config struct {
	NodeName   string
	Kubeconfig string
	DriverName string

	NvidiaDriverRoot    string
	ContainerDriverRoot string
	DevRoot             string
	CDIRoot             string
	CDIHookPath         string

	KubeletPluginsDir      string
	KubeletRegistrarDir    string
	KubeletPodResourcesDir string

	ProcRoot   string
	SysRoot    string
	BootIDFile string

	HTTPEndpoint    string
	MetricsPath     string
	PprofPath       string
	HealthcheckPort int

	PodUID       string
	PodNamespace string

	AllowGPUReset   bool
	AdoptForeignMIG bool
	MIGModeIdle     time.Duration

	MPSDir        string
	SharingConfig string

	VanishedClaimGrace time.Duration

	Verbosity int
	Version   bool
}

// Flag is one row of the table.
type Flag = flagtable.Flag[Config]

// Table is every flag, in the order of the reference.
var Table = []Flag{
	{Name: "node-name", Default: "", Field: func(c *Config) any { return &c.NodeName },
		Usage: "Name of the Node this plugin runs on. Required."},
	{Name: "kubeconfig", Default: "", Field: func(c *Config) any { return &c.Kubeconfig },
		Usage: "Kubeconfig file. Empty: the service account of the pod."},
	{Name: "driver-name", Default: "gpu.nvidia.com", Field: func(c *Config) any { return &c.DriverName },
		Usage: "Name under which the plugin registers with the kubelet and publishes devices; their attributes and DeviceClasses are named after it."},
	{Name: "nvidia-driver-root", Default: "/", Field: func(c *Config) any { return &c.NvidiaDriverRoot },
		Usage: "Root of the NVIDIA driver as the container runtime on the node sees it: / where it is installed on the host, /run/nvidia/driver for the GPU operator's driver container."},
	{Name: "container-driver-root", Default: "/driver-root", Field: func(c *Config) any { return &c.ContainerDriverRoot },
		Usage: "Where this process sees that root."},
	{Name: "dev-root", Default: "", Field: func(c *Config) any { return &c.DevRoot },
		Usage: "Directory whose dev/ holds the GPUs' device nodes, at the same path for this process and the container runtime. Empty: the driver root."},
	{Name: "cdi-root", Default: "/var/run/cdi", Field: func(c *Config) any { return &c.CDIRoot },
		Usage: "Directory where the container runtime reads CDI specs."},
	{Name: "nvidia-cdi-hook-path", Default: "/usr/bin/nvidia-cdi-hook", Field: func(c *Config) any { return &c.CDIHookPath },
		Usage: "The nvidia-cdi-hook binary in this image. It is copied to the plugin's data directory, where the container runtime can run it."},
	{Name: "kubelet-plugins-directory-path", Default: "/var/lib/kubelet/plugins", Field: func(c *Config) any { return &c.KubeletPluginsDir },
		Usage: "The kubelet's directory for plugin data. The plugin keeps records, its socket and the CDI hook in the directory <driver-name> below it, which must be on a disk and at the same path on the node."},
	{Name: "kubelet-registrar-directory-path", Default: "/var/lib/kubelet/plugins_registry", Field: func(c *Config) any { return &c.KubeletRegistrarDir },
		Usage: "The kubelet's directory for plugin registration."},
	{Name: "kubelet-pod-resources-directory-path", Default: "/var/lib/kubelet/pod-resources", Field: func(c *Config) any { return &c.KubeletPodResourcesDir },
		Usage: "The kubelet's directory with the pod-resources socket, asked before a vanished claim is released."},
	{Name: "proc-root", Default: "/proc", Field: func(c *Config) any { return &c.ProcRoot },
		Usage: "Where this process sees the node's /proc."},
	{Name: "sys-root", Default: "/sys", Field: func(c *Config) any { return &c.SysRoot },
		Usage: "Where this process sees the node's /sys."},
	{Name: "boot-id-file", Default: "/proc/sys/kernel/random/boot_id", Field: func(c *Config) any { return &c.BootIDFile },
		Usage: "File with the ID of the node's boot."},
	{Name: "http-endpoint", Default: "", Field: func(c *Config) any { return &c.HTTPEndpoint },
		Usage: "Address of the metrics server, as \":8080\". Empty: none."},
	{Name: "metrics-path", Default: "/metrics", Field: func(c *Config) any { return &c.MetricsPath },
		Usage: "Path of the metrics on that server. Empty: none."},
	{Name: "pprof-path", Default: "", Field: func(c *Config) any { return &c.PprofPath },
		Usage: "Path of Go's profiles on that server, as \"/debug/pprof\". Empty: none."},
	{Name: "healthcheck-port", Default: 51515, Field: func(c *Config) any { return &c.HealthcheckPort },
		Usage: "TCP port of the gRPC health service. Negative: none."},
	{Name: "pod-uid", Default: "", Field: func(c *Config) any { return &c.PodUID },
		Usage: "UID of this pod. With it a newer instance can start while this one still runs, as an update with maxSurge does; that needs a kubelet of 1.33 or newer."},
	{Name: "pod-namespace", Default: "", Field: func(c *Config) any { return &c.PodNamespace },
		Usage: "Namespace of this pod, for the log."},
	{Name: "allow-gpu-reset", Default: false, Field: func(c *Config) any { return &c.AllowGPUReset },
		Usage: "Switch the MIG mode of idle GPUs also where that resets the GPU (Ampere). Without it the mode is taken as found there."},
	{Name: "adopt-foreign-mig", Default: false, Field: func(c *Config) any { return &c.AdoptForeignMIG },
		Usage: "Take MIG partitions and modes that no claim owns for leftovers: they are destroyed, and switched off, where a claim needs their place. Without it they belong to whoever made them and are published as they are."},
	{Name: "mig-mode-idle", Default: 10 * time.Minute, Field: func(c *Config) any { return &c.MIGModeIdle },
		Usage: "How long a GPU whose MIG mode this driver switched on must be unused before the mode is switched back. 0: only when a claim needs the GPU whole."},
	{Name: "mps-dir", Default: "", Field: func(c *Config) any { return &c.MPSDir },
		Usage: "Directory of the MPS daemons, with the socket of mps-supervisor, at the same path on the node. Empty: the node has no MPS, and shares take turns."},
	{Name: "sharing-config", Default: "", Field: func(c *Config) any { return &c.SharingConfig },
		Usage: "File with the node's settings of sharing; a config file of NVIDIA's device plugin is one. It is read again when it changes, and one that makes no sense leaves the last one in force. Empty: none."},
	{Name: "vanished-claim-grace", Default: 5 * time.Minute, Field: func(c *Config) any { return &c.VanishedClaimGrace },
		Usage: "How long a prepared claim must be gone from the API server before its devices are released without the kubelet asking. Kubelet and processes must be done with it too."},
	{Name: "v", Short: "v", Default: 2, Field: func(c *Config) any { return &c.Verbosity },
		Usage: "Verbosity of the log: 0 problems and configuration, 2 each claim prepared and unprepared, 4 details, 6 API requests and calls of the kubelet."},
	{Name: "version", Default: false, Field: func(c *Config) any { return &c.Version },
		Usage: "Print the version and exit."},
}
