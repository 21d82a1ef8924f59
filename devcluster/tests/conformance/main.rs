//! The API as clients see it, case by case.
//!
//! Each test is named after the case of the specification that it covers. The target is an embedded cluster, or
//! any server that the kubeconfig in `DEVCLUSTER_CONFORMANCE_KUBECONFIG` names: what holds for a real
//! kube-apiserver must hold for the embedded one.

mod applies;
mod definitions;
mod deletion;
mod discovery;
mod kinds;
mod lists;
mod negotiation;
mod patches;
mod permissions;
mod support;
mod updates;
mod watches;
mod writes;
