// Copyright the gpu-dra-driver authors.
// SPDX-License-Identifier: Apache-2.0

// Command binding measures the delay of device binding conditions (KEP-5007). It is the time from a pod's creation
// until it has a node, with a device that has a condition and with a plain one. The slices are its own, without a
// driver. It sets the condition as soon as its watch shows the allocation, faster than any driver.
//
// Run it on a cluster: bin/onenode run --dir DIR --kubernetes v1.37.1 -- go -C test run ./bench/binding
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"gpu-dra-driver/test/bench/table"
	"gpu-dra-driver/test/command"
)

const (
	driver    = "binding.example.com"
	condition = driver + "/ready"
	namespace = metav1.NamespaceDefault
)

func main() { command.Main("binding", run) }

func run(ctx context.Context, args []string, out, _ io.Writer) error {
	flags := flag.NewFlagSet("binding", flag.ContinueOnError)
	samples := flags.Int("samples", 20, "pods of each kind")
	if err := flags.Parse(args); err != nil {
		return err
	}
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	if err != nil {
		return err
	}
	config.QPS = -1
	b := bench{}
	if b.client, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	if err := b.publish(ctx); err != nil {
		return err
	}
	for _, c := range []struct {
		figure, class string
		answer        bool
	}{
		{"plain device", "plain", false},
		{"device with a condition", "conditional", true},
	} {
		var took []time.Duration
		for i := range *samples {
			one, err := b.sample(ctx, fmt.Sprintf("%s-%d", c.class, i), c.class, c.answer)
			if err != nil {
				return fmt.Errorf("%s: %w", c.figure, err)
			}
			took = append(took, one)
		}
		slices.Sort(took)
		fmt.Fprintf(out, "%s: p50 %s, min %s, max %s\n", c.figure,
			table.Millis(table.Quantile(took, 0.5)), table.Millis(took[0]), table.Millis(took[len(took)-1]))
	}
	return nil
}

type bench struct{ client kubernetes.Interface }

// publish creates a slice with a plain device and one with conditions, and a class for each.
func (b bench) publish(ctx context.Context) error {
	nodes, err := b.client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	kind := func(value string) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
		return map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"kind": {StringValue: &value}}
	}
	node := nodes.Items[0].Name
	made, err := b.client.ResourceV1().ResourceSlices().Create(ctx, &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "binding-"},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: driver, NodeName: &node, Pool: resourceapi.ResourcePool{Name: node, ResourceSliceCount: 1},
			Devices: []resourceapi.Device{
				{Name: "plain", Attributes: kind("plain")},
				{Name: "conditional", Attributes: kind("conditional"), BindingConditions: []string{condition}, BindingFailureConditions: []string{driver + "/failed"}},
			},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	if len(made.Spec.Devices[1].BindingConditions) == 0 {
		return errors.New("the API server drops binding conditions: it needs DRADeviceBindingConditions")
	}
	for _, name := range []string{"plain", "conditional"} {
		expression := fmt.Sprintf(`device.driver == %q && device.attributes[%q].kind == %q`, driver, driver, name)
		_, err := b.client.ResourceV1().DeviceClasses().Create(ctx, &resourceapi.DeviceClass{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: resourceapi.DeviceClassSpec{
				Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}},
			},
		}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
	}
	return nil
}

// sample returns the time from a pod's creation until it has a node. With answer, it sets the device's condition.
func (b bench) sample(ctx context.Context, name, class string, answer bool) (took time.Duration, err error) {
	claims := b.client.ResourceV1().ResourceClaims(namespace)
	pods := b.client.CoreV1().Pods(namespace)
	_, err = claims.Create(ctx, &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{
			{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class}},
		}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return 0, err
	}
	named := metav1.ListOptions{FieldSelector: "metadata.name=" + name}
	claimEvents, err := claims.Watch(ctx, named)
	if err != nil {
		return 0, err
	}
	defer claimEvents.Stop()
	podEvents, err := pods.Watch(ctx, named)
	if err != nil {
		return 0, err
	}
	defer podEvents.Stop()
	now := int64(0)
	defer func() {
		err = errors.Join(err, pods.Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: &now}),
			claims.Delete(ctx, name, metav1.DeleteOptions{}))
		for err == nil { // The next sample needs the device.
			one, gone := claims.Get(ctx, name, metav1.GetOptions{})
			if gone != nil {
				return
			}
			one.Finalizers, one.Status = nil, resourceapi.ResourceClaimStatus{}
			_, _ = claims.UpdateStatus(ctx, one, metav1.UpdateOptions{}) // The kubelet has no driver; nothing is prepared.
		}
	}()
	began := time.Now()
	_, err = pods.Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{
				Name: "c", Image: "none", ImagePullPolicy: corev1.PullNever,
				Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "d"}}},
			}},
			ResourceClaims: []corev1.PodResourceClaim{{Name: "d", ResourceClaimName: &name}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return 0, err
	}
	limit := time.After(time.Minute)
	answered := false
	for {
		select {
		case e := <-podEvents.ResultChan():
			if p, ok := e.Object.(*corev1.Pod); ok && p.Spec.NodeName != "" {
				return time.Since(began), nil
			}
		case e := <-claimEvents.ResultChan():
			c, ok := e.Object.(*resourceapi.ResourceClaim)
			if !ok || e.Type == watch.Deleted {
				continue
			}
			if answer && !answered && c.Status.Allocation != nil {
				answered = true
				if err := b.answer(ctx, c); err != nil {
					return 0, err
				}
			}
		case <-limit:
			return 0, errors.New("no answer within a minute")
		}
	}
}

// answer sets the condition of a claim's device.
func (b bench) answer(ctx context.Context, c *resourceapi.ResourceClaim) error {
	r := c.Status.Allocation.Devices.Results[0]
	c.Status.Devices = []resourceapi.AllocatedDeviceStatus{{
		Driver: r.Driver, Pool: r.Pool, Device: r.Device,
		Conditions: []metav1.Condition{{Type: condition, Status: metav1.ConditionTrue, Reason: "Measured", LastTransitionTime: metav1.Now()}},
	}}
	_, err := b.client.ResourceV1().ResourceClaims(namespace).UpdateStatus(ctx, c, metav1.UpdateOptions{})
	return err
}
