// Publishes each Site as a ConfigMap NAME-page; a deleted site leaves NAME-archive behind.
// The controller of docs/compared.md with controller-runtime.
package main

import (
	"context"
	"os"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	metav1ac "k8s.io/client-go/applyconfigurations/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/events"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/scheme"
)

const name = "example.dev/site" // of finalizer, field owner and reporter of events

// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
type Site struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              SiteSpec   `json:"spec"`
	Status            SiteStatus `json:"status,omitempty"`
}

type SiteSpec struct {
	Title string `json:"title"`
}

type SiteStatus struct {
	Published string `json:"published,omitempty"`
}

// +kubebuilder:object:root=true
type SiteList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Site `json:"items"`
}

type sites struct {
	client.Client
	events events.EventRecorder
}

func (r *sites) publish(ctx context.Context, site *Site, suffix string, owners ...*metav1ac.OwnerReferenceApplyConfiguration) error {
	page := corev1ac.ConfigMap(site.Name+suffix, site.Namespace).
		WithOwnerReferences(owners...).
		WithData(map[string]string{"title": site.Spec.Title})
	return r.Apply(ctx, page, client.FieldOwner(name), client.ForceOwnership)
}

func (r *sites) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var site Site
	if err := r.Get(ctx, req.NamespacedName, &site); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	read := client.MergeFromWithOptions(site.DeepCopy(), client.MergeFromWithOptimisticLock{})
	if !site.DeletionTimestamp.IsZero() {
		if err := r.publish(ctx, &site, "-archive"); err != nil {
			return ctrl.Result{}, err
		}
		if controllerutil.RemoveFinalizer(&site, name) {
			return ctrl.Result{}, client.IgnoreNotFound(r.Patch(ctx, &site, read))
		}
		return ctrl.Result{}, nil
	}
	if controllerutil.AddFinalizer(&site, name) {
		if err := r.Patch(ctx, &site, read); err != nil {
			return ctrl.Result{}, err
		}
	}
	owner := metav1ac.OwnerReference().
		WithAPIVersion("example.dev/v1").WithKind("Site").WithName(site.Name).WithUID(site.UID).
		WithController(true).WithBlockOwnerDeletion(true)
	if err := r.publish(ctx, &site, "-page", owner); err != nil {
		return ctrl.Result{}, err
	}
	if site.Status.Published != site.Spec.Title {
		read := client.MergeFrom(site.DeepCopy())
		site.Status.Published = site.Spec.Title
		if err := r.Status().Patch(ctx, &site, read); err != nil {
			return ctrl.Result{}, err
		}
		r.events.Eventf(&site, nil, corev1.EventTypeNormal, "Published", "Apply", "%s", site.Spec.Title)
	}
	return ctrl.Result{}, nil
}

func run() error {
	types := runtime.NewScheme()
	utilruntime.Must(clientgoscheme.AddToScheme(types))
	builder := &scheme.Builder{GroupVersion: schema.GroupVersion{Group: "example.dev", Version: "v1"}}
	utilruntime.Must(builder.Register(&Site{}, &SiteList{}).AddToScheme(types))
	manager, err := ctrl.NewManager(ctrl.GetConfigOrDie(), ctrl.Options{
		Scheme:                        types,
		LeaderElection:                true,
		LeaderElectionID:              "site.example.dev",
		LeaderElectionNamespace:       "default",
		LeaderElectionReleaseOnCancel: true,
		HealthProbeBindAddress:        "127.0.0.1:8081",
		Metrics:                       server.Options{BindAddress: "127.0.0.1:8080"},
	})
	if err != nil {
		return err
	}
	if err := manager.AddReadyzCheck("ping", healthz.Ping); err != nil {
		return err
	}
	reconciler := &sites{Client: manager.GetClient(), events: manager.GetEventRecorder(name)}
	err = ctrl.NewControllerManagedBy(manager).For(&Site{}).Owns(&corev1.ConfigMap{}).Complete(reconciler)
	if err != nil {
		return err
	}
	return manager.Start(ctrl.SetupSignalHandler())
}

func main() {
	ctrl.SetLogger(klog.Background())
	if err := run(); err != nil {
		ctrl.Log.Error(err, "ended")
		os.Exit(1)
	}
}
