package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// elect contends for a Lease with client-go's own elector. While it leads it counts up
// the ConfigMap named like the Lease: data holds "holder", "term" (the Lease's
// transitions) and "count"; every write is guarded by resourceVersion, and a term that
// is older than the one on record writes nothing.
//
// Each event is one JSON line on standard output. It ends on SIGTERM, after giving the
// Lease back, or when its term is over.
func elect(args []string) error {
	flags := flag.NewFlagSet("elect", flag.ExitOnError)
	config := flags.String("kubeconfig", "", "kubeconfig of the cluster (required)")
	namespace := flags.String("namespace", "default", "namespace of Lease and ConfigMap")
	name := flags.String("lease", "", "name of the Lease and of the ConfigMap that is counted up (required)")
	identity := flags.String("identity", "", "identity of this contender (required)")
	duration := flags.Duration("lease-duration", 3*time.Second, "how long the others wait for a renewal")
	deadline := flags.Duration("renew-deadline", 2*time.Second, "how long the holder tries to renew")
	retry := flags.Duration("retry-period", 500*time.Millisecond, "wait between two tries")
	period := flags.Duration("count-period", 20*time.Millisecond, "wait between two counts")
	flags.Parse(args)
	if *config == "" || *name == "" || *identity == "" {
		return errors.New("--kubeconfig, --lease and --identity are required")
	}
	rest, err := clientcmd.BuildConfigFromFlags("", *config)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(rest)
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	lock := &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: *namespace, Name: *name},
		Client:     client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: *identity},
	}
	counted := make(chan struct{})
	var led bool
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:            lock,
		LeaseDuration:   *duration,
		RenewDeadline:   *deadline,
		RetryPeriod:     *retry,
		ReleaseOnCancel: true,
		Name:            *name,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				defer close(counted)
				led = true
				if err := count(ctx, client, *namespace, *name, *identity, *period); err != nil {
					say(map[string]any{"event": "error", "error": err.Error()})
				}
			},
			OnStoppedLeading: func() { say(map[string]any{"event": "stopped"}) },
			OnNewLeader:      func(leader string) { say(map[string]any{"event": "leader", "identity": leader}) },
		},
	})
	if err != nil {
		return err
	}
	say(map[string]any{"event": "ready"})
	elector.Run(ctx)
	if led {
		<-counted
	}
	return nil
}

func say(event map[string]any) {
	json.NewEncoder(os.Stdout).Encode(event)
}

// count adds one to the ConfigMap again and again until its term ends.
func count(ctx context.Context, client kubernetes.Interface, namespace, name, identity string, period time.Duration) error {
	lease, err := client.CoordinationV1().Leases(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return err
	}
	term := 0
	if lease.Spec.LeaseTransitions != nil {
		term = int(*lease.Spec.LeaseTransitions)
	}
	say(map[string]any{"event": "started", "term": term})
	maps := client.CoreV1().ConfigMaps(namespace)
	for ctx.Err() == nil {
		counter, err := maps.Get(ctx, name, metav1.GetOptions{})
		if err == nil {
			before, _ := strconv.Atoi(counter.Data["term"])
			if before > term {
				return fmt.Errorf("term %d is over: %d counts already", term, before)
			}
			n, _ := strconv.Atoi(counter.Data["count"])
			counter.Data = map[string]string{
				"holder": identity, "term": strconv.Itoa(term), "count": strconv.Itoa(n + 1),
			}
			_, err = maps.Update(ctx, counter, metav1.UpdateOptions{})
		}
		if err != nil && ctx.Err() == nil && !apierrors.IsConflict(err) {
			say(map[string]any{"event": "error", "error": err.Error()})
		}
		select {
		case <-ctx.Done():
		case <-time.After(period):
		}
	}
	return nil
}
