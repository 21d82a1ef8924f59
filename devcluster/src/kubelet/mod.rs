//! Module kubelet.
