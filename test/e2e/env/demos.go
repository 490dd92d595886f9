// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package env

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpu-dra-driver/test/demos"
)

// Demo is a runnable example.
type Demo = demos.Demo

// Demos lists demo/*.yaml in order of their names.
func (e *Env) Demos() ([]Demo, error) { return demos.List(e.Tree) }

// Apply creates the objects of a demo's file, after those of an earlier run have been deleted.
func (e *Env) Apply(ctx context.Context, d Demo) error {
	if err := e.WaitNamespaceGone(ctx, d.Namespace()); err != nil {
		return err
	}
	_, err := e.Kubectl(ctx, "apply", "-f", d.Path)
	if err == nil || !strings.Contains(err.Error(), `serviceaccount "default" not found`) {
		return err
	}
	// The controller manager makes the account after the namespace, and the API server waits for it for a moment only.
	if err := e.Eventually(ctx, "default service account", 30*time.Second, func(ctx context.Context) (bool, string) {
		_, err := e.Client.CoreV1().ServiceAccounts(d.Namespace()).Get(ctx, "default", metav1.GetOptions{})
		return err == nil, fmt.Sprint(err)
	}); err != nil {
		return err
	}
	_, err = e.Kubectl(ctx, "apply", "-f", d.Path)
	return err
}

// Play runs the commands of a demo's steps in order and returns them with their output, as a terminal shows them.
func (e *Env) Play(ctx context.Context, d Demo) (string, error) {
	var shown strings.Builder
	for _, step := range d.Steps {
		words := strings.Fields(step.Command)[1:]
		kubectl := e.Kubectl
		if words[0] == "gpu" {
			kubectl, words = e.KubectlGPU, words[1:]
		}
		out, err := kubectl(ctx, words...)
		fmt.Fprintf(&shown, "$ %s\n%s\n", step.Command, strings.TrimSpace(out))
		switch {
		case step.Refused && err == nil:
			return shown.String(), fmt.Errorf("demo %s: %q was not refused: %s", d.Name, step.Command, out)
		case !step.Refused && err != nil:
			return shown.String(), fmt.Errorf("demo %s: %w", d.Name, err)
		}
	}
	return shown.String(), nil
}

// Remove deletes the demo and waits until its pods and claims are gone. Kubernetes takes longer to remove the
// namespace itself.
func (e *Env) Remove(ctx context.Context, d Demo) error {
	if _, err := e.Kubectl(ctx, "delete", "-f", d.Path, "--ignore-not-found", "--wait=false"); err != nil {
		return err
	}
	return e.Eventually(ctx, "pods and claims of "+d.Name+" gone", 90*time.Second, func(ctx context.Context) (bool, string) {
		pods, err := e.Client.CoreV1().Pods(d.Namespace()).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		claims, err := e.Client.ResourceV1().ResourceClaims(d.Namespace()).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		return len(pods.Items)+len(claims.Items) == 0, fmt.Sprintf("%d pods and %d claims are left", len(pods.Items), len(claims.Items))
	})
}

// WaitNamespaceGone waits until a namespace is deleted.
func (e *Env) WaitNamespaceGone(ctx context.Context, namespace string) error {
	return e.Eventually(ctx, "namespace "+namespace+" gone", 90*time.Second, func(ctx context.Context) (bool, string) {
		_, err := e.Client.CoreV1().Namespaces().Get(ctx, namespace, metav1.GetOptions{})
		return apierrors.IsNotFound(err), "it is still there"
	})
}

// View is the probe's report from inside a container.
type View struct {
	Devices []struct {
		Path     string `json:"path"`
		Type     string `json:"type"`
		Major    int    `json:"major"`
		Minor    int    `json:"minor"`
		Openable bool   `json:"openable"`
	} `json:"devices"`
	Env       map[string]string `json:"env"`
	Mounts    []string          `json:"mounts"`
	UID       int               `json:"uid"`
	NvidiaSMI string            `json:"nvidiaSMI"`
	// NCCLTopology is the content of the file in NCCL_TOPO_FILE.
	NCCLTopology string `json:"ncclTopology"`
	// Metadata has the files about the container's devices, by path below the directory that Kubernetes defines.
	Metadata map[string]string `json:"metadata"`
	// CUDA is the report of the process, Processes those of the container's other processes.
	CUDA      CUDA   `json:"cuda"`
	Processes []CUDA `json:"processes"`
}

// CUDA is the report of a CUDA process about its device.
type CUDA struct {
	MPS        bool   `json:"mps"`
	LimitBytes uint64 `json:"limitBytes"`
	Threads    int    `json:"activeThreadPercentage"`
	Device     string `json:"device"`
	Allocs     []struct {
		Bytes uint64 `json:"bytes"`
		OK    bool   `json:"ok"`
		Error string `json:"error"`
	} `json:"allocs"`
	Error     string `json:"error"`
	PipeWrite string `json:"pipeWrite"`
}

// Share reports whether an allocation is a share of its device, and the size of its memory in bytes.
func Share(r resourceapi.DeviceRequestAllocationResult) (bytes int64, ok bool) {
	q, ok := r.ConsumedCapacity["memory"]
	return q.Value(), ok && r.ShareID != nil
}

// GPUs lists the container's /dev/nvidia<N>.
func (v View) GPUs() []string {
	var out []string
	for _, d := range v.Devices {
		if n, ok := strings.CutPrefix(d.Path, "/dev/nvidia"); ok && n != "" && strings.Trim(n, "0123456789") == "" {
			out = append(out, d.Path)
		}
	}
	return out
}

// Capabilities lists the container's MIG capabilities, by their nodes in /dev/nvidia-caps.
func (v View) Capabilities() []string {
	var out []string
	for _, d := range v.Devices {
		if name, ok := strings.CutPrefix(d.Path, "/dev/nvidia-caps/"); ok {
			out = append(out, name)
		}
	}
	return out
}

// UUIDs lists the GPUs in the output of nvidia-smi -L in the container.
func (v View) UUIDs() []string {
	var out []string
	for line := range strings.Lines(v.NvidiaSMI) {
		if _, rest, ok := strings.Cut(line, "(UUID: "); ok {
			uuid, _, _ := strings.Cut(rest, ")")
			out = append(out, uuid)
		}
	}
	return out
}

// Inspect waits for a container's report and reads it.
func (e *Env) Inspect(ctx context.Context, namespace, pod, container string) (View, error) {
	var v View
	err := e.Eventually(ctx, fmt.Sprintf("report of %s/%s/%s", namespace, pod, container), 60*time.Second, func(ctx context.Context) (bool, string) {
		data, err := e.Client.CoreV1().Pods(namespace).GetLogs(pod, &corev1.PodLogOptions{Container: container}).DoRaw(ctx)
		if err != nil {
			return false, err.Error()
		}
		// A message of the container runtime can come first, such as one about an earlier attempt to start the container.
		for line := range strings.Lines(string(data)) {
			if strings.HasPrefix(line, "{") {
				err := json.Unmarshal([]byte(line), &v)
				return err == nil, fmt.Sprintf("it said %q", line)
			}
		}
		return false, fmt.Sprintf("it said %q", data)
	})
	return v, err
}

// startLimit is twice the longest time between a kubelet's attempts to start a pod, which is 90 s after a failed Prepare.
const startLimit = 3 * time.Minute

// WaitPods waits until a namespace has count pods that run or have succeeded, and lists them by name.
func (e *Env) WaitPods(ctx context.Context, namespace string, count int) ([]corev1.Pod, error) {
	var pods []corev1.Pod
	err := e.Eventually(ctx, fmt.Sprintf("%d pods in %s", count, namespace), startLimit, func(ctx context.Context) (bool, string) {
		list, err := e.Client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		pods = list.Items
		if len(pods) != count {
			return false, fmt.Sprintf("there are %d", len(pods))
		}
		for _, p := range pods {
			if p.Status.Phase != corev1.PodRunning && p.Status.Phase != corev1.PodSucceeded || p.DeletionTimestamp != nil {
				return false, fmt.Sprintf("%s is %s", p.Name, p.Status.Phase) + e.newestEvent(ctx, p)
			}
		}
		return true, ""
	})
	slices.SortFunc(pods, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return pods, err
}

// WaitSettled waits until the demo's numbers of pods run and are unschedulable, and lists the pods by name.
func (e *Env) WaitSettled(ctx context.Context, d Demo) ([]corev1.Pod, error) {
	var pods []corev1.Pod
	// Each pod is several processes to start, which takes seconds on a small and busy machine.
	limit := startLimit + time.Duration(d.Pods)*2*time.Second
	err := e.Eventually(ctx, "demo "+d.Name, limit, func(ctx context.Context) (bool, string) {
		list, err := e.Client.CoreV1().Pods(d.Namespace()).List(ctx, metav1.ListOptions{})
		if err != nil {
			return false, err.Error()
		}
		pods = list.Items
		up, stuck, reason := 0, 0, ""
		for _, p := range pods {
			if p.Status.Phase == corev1.PodRunning || p.Status.Phase == corev1.PodSucceeded {
				up++
			} else if why := e.PendingReason(ctx, p); why != "" {
				stuck++
				reason = why
			} else if reason == "" { // One pod's Events are enough: each costs a request.
				reason = p.Name + " is " + string(p.Status.Phase) + e.newestEvent(ctx, p)
			}
		}
		return up == d.Pods && stuck == d.Pending && up+stuck == len(pods),
			fmt.Sprintf("%d of %d pods run, %d of %d cannot be scheduled %s", up, d.Pods, stuck, d.Pending, reason)
	})
	slices.SortFunc(pods, func(a, b corev1.Pod) int { return strings.Compare(a.Name, b.Name) })
	return pods, err
}

// Unschedulable returns the scheduler's reason for not placing a pod, or "".
func Unschedulable(p corev1.Pod) string {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
			return c.Message
		}
	}
	return ""
}

// PendingReason returns the reason why a pod stays pending, or "": the scheduler's, or that its claim cannot be
// created.
func (e *Env) PendingReason(ctx context.Context, p corev1.Pod) string {
	if reason := Unschedulable(p); reason != "" {
		return reason
	}
	if p.Spec.NodeName != "" {
		return ""
	}
	if why := e.newestEvent(ctx, p); strings.Contains(why, "FailedResourceClaimCreation") {
		return why
	}
	return ""
}

// newestEvent returns the newest Event of a pod, or "".
func (e *Env) newestEvent(ctx context.Context, p corev1.Pod) string {
	events, err := e.Client.CoreV1().Events(p.Namespace).List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.name=" + p.Name})
	if err != nil || len(events.Items) == 0 {
		return ""
	}
	last := events.Items[len(events.Items)-1]
	return ": " + last.Reason + ": " + last.Message
}

// Claims lists the claims of a pod, including the one for its extended resources. It leaves out the claims of an
// ended pod.
func (e *Env) Claims(ctx context.Context, p corev1.Pod) ([]resourceapi.ResourceClaim, error) {
	var names []string
	for _, status := range p.Status.ResourceClaimStatuses {
		if status.ResourceClaimName != nil {
			names = append(names, *status.ResourceClaimName)
		}
	}
	for _, c := range p.Spec.ResourceClaims {
		if c.ResourceClaimName != nil {
			names = append(names, *c.ResourceClaimName)
		}
	}
	if e := p.Status.ExtendedResourceClaimStatus; e != nil {
		names = append(names, e.ResourceClaimName)
	}
	slices.Sort(names)
	var out []resourceapi.ResourceClaim
	for _, name := range slices.Compact(names) {
		c, err := e.Client.ResourceV1().ResourceClaims(p.Namespace).Get(ctx, name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, err
		}
		out = append(out, *c)
	}
	return out, nil
}

// Results returns a claim's devices of this driver.
func Results(c resourceapi.ResourceClaim) []resourceapi.DeviceRequestAllocationResult {
	if c.Status.Allocation == nil {
		return nil
	}
	var out []resourceapi.DeviceRequestAllocationResult
	for _, r := range c.Status.Allocation.Devices.Results {
		if r.Driver == Driver {
			out = append(out, r)
		}
	}
	return out
}
