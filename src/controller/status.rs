//! The status of a Proxy within one pass: a draft, and the one write at the end.

use k8s_openapi::jiff::Timestamp;
use serde_json::{Map, Value, json};

use super::brake;
use crate::api::conditions::{self, ConditionStatus, ConditionType, Reason, Update};
use crate::api::{ProxyStatus, StatusEndpoint, compute_phase, compute_ready};
use crate::provider::Instance;

/// The status that a pass works on.
#[derive(Debug)]
pub(crate) struct Draft {
    status: ProxyStatus,
    generation: Option<i64>,
    deleting: bool,
    now: Timestamp,
    block: Block,
}

/// What becomes of the condition ReplacementBlocked.
#[derive(Debug)]
enum Block {
    /// Nothing was found to hold.
    Lift,
    /// The pass did not get far enough to tell.
    Keep,
    /// Something holds.
    Set(Reason, String),
}

impl Draft {
    /// A draft on top of `status`, as read together with `generation`.
    pub(crate) fn new(
        status: Option<&ProxyStatus>,
        generation: Option<i64>,
        deleting: bool,
        now: Timestamp,
    ) -> Self {
        let status = status.cloned().unwrap_or_default();
        Self {
            status,
            generation,
            deleting,
            now,
            block: Block::Lift,
        }
    }

    /// The status as drafted so far.
    pub(crate) fn get(&self) -> &ProxyStatus {
        &self.status
    }

    /// The status, to change fields that are no conditions.
    pub(crate) fn edit(&mut self) -> &mut ProxyStatus {
        &mut self.status
    }

    pub(crate) fn now(&self) -> Timestamp {
        self.now
    }

    fn set(
        &mut self,
        kind: ConditionType,
        status: ConditionStatus,
        reason: Reason,
        message: impl Into<String>,
    ) {
        let update = Update {
            kind,
            status,
            reason,
            message: message.into(),
            observed_generation: self.generation,
        };
        conditions::set(&mut self.status.conditions, &update, self.now);
    }

    pub(crate) fn provisioned(&mut self, reason: Reason, message: impl Into<String>) {
        self.set(
            ConditionType::Provisioned,
            ConditionStatus::True,
            reason,
            message,
        );
    }

    pub(crate) fn not_provisioned(&mut self, reason: Reason, message: impl Into<String>) {
        self.set(
            ConditionType::Provisioned,
            ConditionStatus::False,
            reason,
            message,
        );
    }

    pub(crate) fn in_sync(&mut self) {
        self.set(
            ConditionType::Synced,
            ConditionStatus::True,
            Reason::InSync,
            "",
        );
    }

    pub(crate) fn out_of_sync(&mut self, reason: Reason, message: impl Into<String>) {
        self.set(
            ConditionType::Synced,
            ConditionStatus::False,
            reason,
            message,
        );
    }

    /// Says that the spec would have something go or come, and what holds it.
    pub(crate) fn block(&mut self, reason: Reason, message: impl Into<String>) {
        self.block = Block::Set(reason, message.into());
    }

    /// Leaves what was said to hold, if anything, as it stands.
    pub(crate) fn keep_block(&mut self) {
        self.block = Block::Keep;
    }

    /// True while the instance was last seen to run.
    pub(crate) fn is_provisioned(&self) -> bool {
        conditions::status(&self.status.conditions, ConditionType::Provisioned)
            == Some(ConditionStatus::True)
    }

    /// Reason of the Provisioned condition.
    pub(crate) fn provisioned_reason(&self) -> Option<Reason> {
        conditions::reason(&self.status.conditions, ConditionType::Provisioned)
    }

    /// S-06: says where a create will come to lie, unless something may lie somewhere already.
    pub(crate) fn place(&mut self, provider: Option<&str>) {
        if self.status.provider.is_none() {
            self.status.provider = provider.map(str::to_owned);
        }
    }

    /// Puts an instance on record.
    pub(crate) fn record(&mut self, provider: &str, instance: &Instance) {
        self.status.provider = Some(provider.to_owned());
        self.status.provider_id = Some(instance.id.to_string());
        self.status.instance_uid = Some(instance.incarnation.to_string());
        self.operation(instance);
    }

    /// Puts on record which operation at the provider is still under way for the instance.
    pub(crate) fn operation(&mut self, instance: &Instance) {
        self.status.operation = instance.operation.as_deref().map(str::to_owned);
    }

    /// Puts on record that the instance made way for another, or has to be followed by one.
    pub(crate) fn replaced(&mut self, reason: Reason) {
        let replaced = brake::replaced(self.status.replacements.as_ref(), reason, self.now);
        self.status.replacements = Some(replaced);
    }

    /// Forgets the instance on record, and that there was anything to compare it with.
    pub(crate) fn clear_instance(&mut self) {
        let provider = self.status.provider.take();
        self.clear_ownership();
        // The next one comes from there, and a crash must not hide that.
        self.status.provider = provider;
        self.clear_endpoint();
        self.drop_synced();
    }

    /// Says nothing about an instance that is of no use any more.
    pub(crate) fn drop_synced(&mut self) {
        conditions::remove(&mut self.status.conditions, ConditionType::Synced);
    }

    /// Forgets provider and instance, and keeps the endpoint of an External Proxy.
    pub(crate) fn clear_ownership(&mut self) {
        let status = &mut self.status;
        status.provider = None;
        status.provider_id = None;
        status.instance_uid = None;
        status.operation = None;
    }

    pub(crate) fn clear_endpoint(&mut self) {
        self.status.ip = None;
        self.status.endpoint = None;
    }

    pub(crate) fn endpoint(&mut self, endpoint: StatusEndpoint) {
        self.status.ip = Some(endpoint.host.clone());
        self.status.endpoint = Some(endpoint);
    }

    /// Fills in what follows from the rest, and answers with the finished status.
    pub(crate) fn finish(mut self) -> ProxyStatus {
        self.set(
            ConditionType::Healthy,
            ConditionStatus::Unknown,
            Reason::ProbingDisabled,
            "the proxy is not probed",
        );
        let kind = ConditionType::ReplacementBlocked;
        match std::mem::replace(&mut self.block, Block::Keep) {
            Block::Set(reason, message) => self.set(kind, ConditionStatus::True, reason, message),
            Block::Lift => {
                conditions::remove(&mut self.status.conditions, kind);
            }
            Block::Keep => {}
        }
        let (ready, reason) = compute_ready(self.deleting, &self.status);
        self.set(ConditionType::Ready, ready, reason, "");
        self.status.phase = Some(compute_phase(self.deleting, &self.status));
        self.status.observed_generation = self.generation;
        self.status
    }
}

/// The body of the one status write: the fields that differ, guarded by `resource_version`.
///
/// `None` if nothing differs: then there is nothing to send.
pub(crate) fn patch(
    base: Option<&ProxyStatus>,
    wanted: &ProxyStatus,
    resource_version: Option<&str>,
) -> Option<Value> {
    let plain =
        |status: &ProxyStatus| serde_json::to_value(status).expect("a status has string keys only");
    let base = base.map_or_else(|| json!({}), plain);
    let changed = merge_patch(&base, &plain(wanted))?;
    Some(json!({ "metadata": { "resourceVersion": resource_version }, "status": changed }))
}

/// The JSON merge patch (RFC 7396) that turns `from` into `to`; `None` if they are equal.
fn merge_patch(from: &Value, to: &Value) -> Option<Value> {
    if from == to {
        return None;
    }
    let (Value::Object(from), Value::Object(to)) = (from, to) else {
        return Some(to.clone());
    };
    let gone = from
        .keys()
        .filter(|key| !to.contains_key(*key))
        .map(|key| (key.clone(), Value::Null));
    let changed = to.iter().filter_map(|(key, value)| {
        let patch = match from.get(key) {
            Some(old) => merge_patch(old, value)?,
            None => value.clone(),
        };
        Some((key.clone(), patch))
    });
    Some(Value::Object(gone.chain(changed).collect::<Map<_, _>>()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::Phase;
    use crate::controller::testing::merge;
    use proptest::prelude::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    #[test]
    fn r05_a_second_pass_that_finds_the_same_has_nothing_to_send() {
        let pass = |base: Option<&ProxyStatus>, now| {
            let mut draft = Draft::new(base, Some(3), false, at(now));
            draft.not_provisioned(Reason::Provisioning, "coming");
            draft.finish()
        };
        let first = pass(None, 1);
        assert!(patch(None, &first, Some("7")).is_some());
        let second = pass(Some(&first), 99);
        assert_eq!(patch(Some(&first), &second, Some("8")), None);
    }

    #[test]
    fn r05_the_patch_holds_changed_fields_alone_and_the_resource_version() {
        let base = ProxyStatus {
            ip: Some("10.0.0.1".to_owned()),
            provider_id: Some("kubernetes://a/b".to_owned()),
            ..ProxyStatus::default()
        };
        let wanted = ProxyStatus {
            ip: None,
            phase: Some(Phase::Ready),
            ..base.clone()
        };
        let body = patch(Some(&base), &wanted, Some("42")).expect("they differ");
        assert_eq!(
            body,
            json!({ "metadata": { "resourceVersion": "42" }, "status": { "ip": null, "phase": "Ready" } }),
        );
    }

    #[test]
    fn c11_ready_follows_provisioned_while_nothing_is_probed() {
        let mut draft = Draft::new(None, Some(1), false, at(1));
        draft.provisioned(Reason::Created, "");
        let status = draft.finish();
        assert_eq!(status.phase, Some(Phase::Ready));
        let ready = conditions::find(&status.conditions, ConditionType::Ready).expect("set");
        assert_eq!(
            (ready.status.as_str(), ready.reason.as_str()),
            ("True", "Serving")
        );
    }

    #[test]
    fn a_block_lasts_as_long_as_passes_find_it() {
        let mut draft = Draft::new(None, Some(1), false, at(1));
        draft.block(Reason::Paused, "spec.paused");
        let held = draft.finish();
        let kind = ConditionType::ReplacementBlocked;
        assert!(conditions::find(&held.conditions, kind).is_some());
        let free = Draft::new(Some(&held), Some(1), false, at(2)).finish();
        assert!(conditions::find(&free.conditions, kind).is_none());
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<i8>().prop_map(Value::from),
            "[a-c]".prop_map(Value::from)
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
                prop::collection::btree_map("[a-c]", inner, 0..4)
                    .prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_merge_patch_leads_from_the_one_to_the_other(from in value(), to in value()) {
            let mut patched = from.clone();
            if let Some(patch) = merge_patch(&from, &to) {
                merge(&mut patched, &patch);
            }
            prop_assert_eq!(patched, to);
        }
    }
}
