// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"gpu-dra-driver/pkg/gpu"
)

// devicesOf are the flags that say which devices a first manifest asks for.
type devicesOf struct {
	gpus, linked    int64
	memory, profile string
}

func (d *devicesOf) addFlags(c *cobra.Command) {
	c.Flags().Int64Var(&d.gpus, "gpu", 0, "So many whole GPUs of one node.")
	c.Flags().StringVar(&d.memory, "memory", "", "A share of a GPU with so much memory, such as 10Gi.")
	c.Flags().StringVar(&d.profile, "profile", "", "A MIG partition of this profile, such as 1g.10gb.")
	c.Flags().Int64Var(&d.linked, "nvlink", 0, "So many whole GPUs that NVLink joins.")
}

// claim returns the spec of a claim, by the classes of the chart.
func (d devicesOf) claim(driver string) (spec resourceapi.ResourceClaimSpec, err error) {
	q := resourceapi.ExactDeviceRequest{DeviceClassName: driver}
	count, given := max(d.gpus, d.linked), 0
	for _, set := range []bool{d.gpus != 0, d.linked != 0, d.memory != "", d.profile != ""} {
		if set {
			given++
		}
	}
	switch {
	case given != 1:
		return spec, errors.New("give one of --gpu, --memory, --profile and --nvlink")
	case d.memory != "":
		memory, err := resource.ParseQuantity(d.memory)
		if err != nil || memory.Sign() <= 0 {
			return spec, fmt.Errorf("--memory=%s is not an amount such as 10Gi", d.memory)
		}
		q.Capacity = &resourceapi.CapacityRequirements{
			Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": memory},
		}
	case d.profile != "":
		if !gpu.ValidProfile(d.profile) {
			return spec, fmt.Errorf("--profile=%s is not a MIG profile such as 1g.10gb", d.profile)
		}
		q.DeviceClassName = "mig." + strings.TrimPrefix(driver, "gpu.")
		q.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: fmt.Sprintf("device.attributes['%s'].profile == '%s'", driver, d.profile),
		}}}
	case count < 1 || count > resourceapi.AllocationResultsMaxSize:
		return spec, fmt.Errorf("ask for 1 to %d GPUs", resourceapi.AllocationResultsMaxSize)
	case count > 1:
		q.Count = count
	}
	spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &q}}
	if d.linked > 0 {
		attribute := resourceapi.FullyQualifiedName(driver + "/nvlinkGroup")
		spec.Devices.Constraints = []resourceapi.DeviceConstraint{{Requests: []string{"gpu"},
			MatchAttribute: &attribute}}
	}
	return spec, nil
}

// manifest has the objects of a first workload.
type manifest struct {
	*factory
	name  string
	apply bool
}

func (m *manifest) addFlags(c *cobra.Command) {
	c.Flags().BoolVar(&m.apply, "apply", false, "Create the objects instead of printing them.")
}

func newRun(f *factory) *cobra.Command {
	var d devicesOf
	m := manifest{factory: f}
	image := ""
	c := &cobra.Command{
		Use: "run NAME --image IMAGE (--gpu N | --memory AMOUNT | --profile PROFILE | --nvlink N) [-- COMMAND " +
			"[ARG...]]",
		Short: "Print or create a pod with GPUs",
		Long: "Print a pod and the template of its claim, or create both with --apply. The pod runs once, and " +
			"tolerates the usual taint\n" +
			"nvidia.com/gpu of GPU nodes. A copy of the output is a start for a manifest of your own, and\n" +
			"its first part, the template, for claims of other pods.",
		Example: "  kubectl gpu run hello --gpu 1 --image ubuntu:24.04 -- nvidia-smi -L\n" +
			"  kubectl gpu run hello --profile 1g.10gb --image ubuntu:24.04 --apply -- sleep 600",
		Args: func(c *cobra.Command, args []string) error {
			if at := c.ArgsLenAtDash(); len(args) == 0 || at == 0 || at < 0 && len(args) > 1 || at > 1 {
				return usageError{fmt.Errorf("give one name, and the command after --")}
			}
			return nil
		},
	}
	d.addFlags(c)
	m.addFlags(c)
	c.Flags().StringVar(&image, "image", "", "Image of the container.")
	c.RunE = f.limited(func(ctx context.Context, args []string) error {
		m.name = args[0]
		spec, err := d.claim(f.driver)
		if image == "" {
			err = errors.Join(err, errors.New("give the image of the container, with --image"))
		}
		if err != nil {
			return usageError{err}
		}
		return m.make(ctx, spec, &corev1.Pod{
			TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: metav1.ObjectMeta{Name: m.name},
			Spec: corev1.PodSpec{
				RestartPolicy: corev1.RestartPolicyNever,
				Tolerations: []corev1.Toleration{{Key: "nvidia.com/gpu", Operator: corev1.TolerationOpExists,
					Effect: corev1.TaintEffectNoSchedule}},
				ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimTemplateName: &m.name}},
				Containers: []corev1.Container{{
					Name:      "main",
					Image:     image,
					Command:   args[1:],
					Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}},
				}},
			},
		})
	})
	return c
}

// make prints or creates a template and a pod.
func (m *manifest) make(ctx context.Context, spec resourceapi.ResourceClaimSpec, pod *corev1.Pod) error {
	template := &resourceapi.ResourceClaimTemplate{
		TypeMeta:   metav1.TypeMeta{APIVersion: resourceapi.SchemeGroupVersion.String(), Kind: "ResourceClaimTemplate"},
		ObjectMeta: metav1.ObjectMeta{Name: m.name}, Spec: resourceapi.ResourceClaimTemplateSpec{Spec: spec},
	}
	if !m.apply {
		return m.print([]runtime.Object{template, pod})
	}
	r, err := m.reader()
	if err != nil {
		return err
	}
	client, namespace := r.client, r.own
	if _, err := client.ResourceV1().ResourceClaimTemplates(namespace).Create(ctx, template,
		metav1.CreateOptions{}); err != nil {
		return m.failed("ResourceClaimTemplate", namespace, err)
	}
	fmt.Fprintf(m.Out, "resourceclaimtemplate.resource.k8s.io/%s created\n", m.name)
	if _, err := client.CoreV1().Pods(namespace).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
		return fmt.Errorf("%w; the template stays", m.failed("pod", namespace, err))
	}
	fmt.Fprintf(m.Out, "pod/%s created; if it waits, kubectl gpu why %s -n %s says why\n", m.name, m.name, namespace)
	return nil
}

func (m *manifest) failed(kind, namespace string, err error) error {
	if apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("%s %s/%s exists: choose another name, or delete it", kind, namespace, m.name)
	}
	return fmt.Errorf("create %s %s/%s: %w", kind, namespace, m.name, err)
}

// print prints objects in YAML, without the fields that the API server fills in. The namespace is only in them if it
// was given.
func (m *manifest) print(objects []runtime.Object) error {
	for i, o := range objects {
		content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		if err != nil {
			return err
		}
		delete(content, "status")
		if meta, ok := content["metadata"].(map[string]any); ok {
			delete(meta, "creationTimestamp")
			if *m.config.Namespace != "" {
				meta["namespace"] = *m.config.Namespace
			}
		}
		if spec, ok := content["spec"].(map[string]any); ok {
			delete(spec, "metadata") // An empty one of a template.
		}
		out, err := yaml.Marshal(content)
		if err != nil {
			return err
		}
		if i > 0 {
			out = append([]byte("---\n"), out...)
		}
		if _, err := m.Out.Write(out); err != nil {
			return fmt.Errorf("print object %s: %w", strconv.Itoa(i+1), err)
		}
	}
	return nil
}
