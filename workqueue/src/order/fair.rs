//! Flows take turns.

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    hash::Hash,
    sync::Arc,
};

use super::{Keys, Order};
use crate::{
    KeyId, OnAdd,
    list::{LinkStore, Links, List},
};

/// Keys belong to flows, such as namespaces or tenants, and within one priority flows take turns.
///
/// Each turn gives a flow as many keys as its [weight](Self::weights) says, one by default. So a
/// flow with one key waits for at most one turn of each other flow, however long their lines are.
/// A flow may be limited in how many of its keys [run at once](Self::max_running); one at its limit
/// does not hold up others.
///
/// A flow without ready and running keys takes no memory. Work per operation grows with the
/// logarithm of the number of flows and priorities in use.
///
/// ```
/// use workqueue::{FairQueue, QueueOptions, order::Fair};
///
/// let by_namespace = || Fair::new(|key: &(&'static str, u32)| key.0).max_running(10);
/// let queue = FairQueue::with_order(QueueOptions::default(), by_namespace)?;
/// for key in [("busy", 1), ("busy", 2), ("busy", 3), ("calm", 1)] {
///     queue.add(key);
/// }
/// let order: Vec<_> = std::iter::from_fn(|| queue.try_get().map(|item| *item)).collect();
/// assert_eq!(order, [("busy", 1), ("calm", 1), ("busy", 2), ("busy", 3)]);
/// # Ok::<_, workqueue::Error>(())
/// ```
pub struct Fair<K, F> {
    flow_of: Arc<dyn Fn(&K) -> F + Send + Sync>,
    weight_of: Arc<dyn Fn(&F) -> u32 + Send + Sync>,
    max_running: usize,
    numbers: HashMap<F, usize>,
    flows: Vec<Option<Flow<F>>>,
    vacant: Vec<usize>,
    /// By priority, the flows that can give a key now, in the order of their turns.
    turns: BTreeMap<i32, BTreeMap<u64, usize>>,
    next_turn: u64,
    len: usize,
}

struct Flow<F> {
    name: F,
    running: usize,
    /// By priority, the flow's ready keys; no lane is empty.
    lanes: BTreeMap<i32, Lane>,
}

#[derive(Default)]
struct Lane {
    keys: List,
    /// The lane's turn, unless the flow is at its limit.
    turn: Option<u64>,
    /// Keys that the turn still gives.
    credit: u32,
}

/// What the policy keeps with a key.
#[derive(Debug, Clone, Copy, Default)]
pub struct FlowPlace {
    links: Links,
    flow: usize,
    level: i32,
}

struct LaneLinks<'a, 'b, K>(&'a mut Keys<'b, K, FlowPlace>);

impl<K> LinkStore for LaneLinks<'_, '_, K> {
    fn links(&mut self, id: KeyId) -> &mut Links {
        &mut self.0.slot_mut(id).links
    }
}

impl<K, F: Clone + Eq + Hash> Fair<K, F> {
    /// Flows by a function of the key, all of weight 1 and without a limit.
    pub fn new(flow_of: impl Fn(&K) -> F + Send + Sync + 'static) -> Self {
        Self {
            flow_of: Arc::new(flow_of),
            weight_of: Arc::new(|_| 1),
            max_running: usize::MAX,
            numbers: HashMap::new(),
            flows: Vec::new(),
            vacant: Vec::new(),
            turns: BTreeMap::new(),
            next_turn: 0,
            len: 0,
        }
    }

    /// How many keys a flow gives in one turn; 0 counts as 1.
    #[must_use]
    pub fn weights(mut self, weight_of: impl Fn(&F) -> u32 + Send + Sync + 'static) -> Self {
        self.weight_of = Arc::new(weight_of);
        self
    }

    /// How many keys of one flow run at once at most; 0 counts as 1. Works on one shard only.
    #[must_use]
    pub fn max_running(mut self, max: usize) -> Self {
        self.max_running = max.max(1);
        self
    }

    /// The flow's number; a flow that is not known gets one.
    fn number(&mut self, name: F) -> usize {
        if let Some(number) = self.numbers.get(&name) {
            return *number;
        }
        let number = self.vacant.pop().unwrap_or_else(|| {
            self.flows.push(None);
            self.flows.len() - 1
        });
        self.numbers.insert(name.clone(), number);
        self.flows[number] = Some(Flow {
            name,
            running: 0,
            lanes: BTreeMap::new(),
        });
        number
    }

    fn flow(&mut self, number: usize) -> &mut Flow<F> {
        self.flows[number]
            .as_mut()
            .expect("a flow lives while it has ready or running keys")
    }

    /// Forgets the flow if it has no keys.
    fn forget_idle(&mut self, number: usize) {
        let flow = self.flow(number);
        if flow.running > 0 || !flow.lanes.is_empty() {
            return;
        }
        if let Some(flow) = self.flows[number].take() {
            self.numbers.remove(&flow.name);
        }
        self.vacant.push(number);
        if self.numbers.is_empty() {
            self.numbers = HashMap::new();
            self.flows = Vec::new();
            self.vacant = Vec::new();
        }
    }

    /// Puts a lane at the end of the line of its priority, with a full turn.
    fn line_up(&mut self, number: usize, level: i32) {
        let turn = self.next_turn;
        self.next_turn += 1;
        let weight_of = Arc::clone(&self.weight_of);
        let flow = self.flow(number);
        let credit = weight_of(&flow.name).max(1);
        let lane = flow
            .lanes
            .get_mut(&level)
            .expect("a lane that lines up has keys");
        (lane.turn, lane.credit) = (Some(turn), credit);
        self.turns.entry(level).or_default().insert(turn, number);
    }

    /// Takes a turn back.
    fn step_out(&mut self, level: i32, turn: Option<u64>) {
        let Some(turn) = turn else { return };
        if let Some(turns) = self.turns.get_mut(&level) {
            turns.remove(&turn);
            if turns.is_empty() {
                self.turns.remove(&level);
            }
        }
    }

    /// Adds a key to its flow's lane.
    fn join(&mut self, keys: &mut Keys<'_, K, FlowPlace>, id: KeyId, number: usize) {
        let level = keys.priority(id);
        let slot = keys.slot_mut(id);
        (slot.flow, slot.level) = (number, level);
        let max_running = self.max_running;
        let flow = self.flow(number);
        let may_run = flow.running < max_running;
        let lane = flow.lanes.entry(level).or_default();
        lane.keys.push_back(&mut LaneLinks(keys), id);
        if lane.turn.is_none() && may_run {
            self.line_up(number, level);
        }
        self.len += 1;
    }

    /// Takes a ready key out of its lane.
    fn part(&mut self, keys: &mut Keys<'_, K, FlowPlace>, id: KeyId) {
        let FlowPlace {
            flow: number,
            level,
            ..
        } = *keys.slot(id);
        let flow = self.flow(number);
        let lane = flow
            .lanes
            .get_mut(&level)
            .expect("a ready key is in its lane");
        lane.keys.remove(&mut LaneLinks(keys), id);
        if lane.keys.is_empty() {
            let turn = lane.turn;
            flow.lanes.remove(&level);
            self.step_out(level, turn);
        }
        self.len -= 1;
    }
}

impl<K, F> Order<K> for Fair<K, F>
where
    K: 'static,
    F: Clone + Eq + Hash + Send + 'static,
{
    type Slot = FlowPlace;

    const ON_ADD: OnAdd = OnAdd::Supersede;
    const PRIORITIES: bool = true;

    fn shardable(&self) -> bool {
        self.max_running == usize::MAX
    }

    fn push(&mut self, keys: &mut Keys<'_, K, FlowPlace>, id: KeyId, _: u64) {
        let name = (self.flow_of)(keys.key(id));
        let number = self.number(name);
        self.join(keys, id, number);
    }

    fn touch(&mut self, keys: &mut Keys<'_, K, FlowPlace>, id: KeyId, _: u64) {
        let FlowPlace { flow, level, .. } = *keys.slot(id);
        if keys.priority(id) > level {
            self.part(keys, id);
            self.join(keys, id, flow);
        }
    }

    fn pop(&mut self, keys: &mut Keys<'_, K, FlowPlace>) -> Option<KeyId> {
        let (&level, turns) = self.turns.last_key_value()?;
        let (_, &number) = turns
            .first_key_value()
            .expect("a level without turns is removed");
        let max_running = self.max_running;
        let flow = self.flow(number);
        let lane = flow
            .lanes
            .get_mut(&level)
            .expect("a lane with a turn has keys");
        let id = lane.keys.head().expect("a lane with a turn has keys");
        lane.credit -= 1;
        let (turn, spent) = (lane.turn, lane.credit == 0);
        flow.running += 1;
        let at_limit = flow.running == max_running;
        self.part(keys, id);
        if at_limit {
            let flow = self.flow(number);
            let waiting: Vec<_> = flow
                .lanes
                .iter_mut()
                .map(|(level, lane)| (*level, lane.turn.take()))
                .collect();
            for (level, turn) in waiting {
                self.step_out(level, turn);
            }
        } else if spent && self.flow(number).lanes.contains_key(&level) {
            self.step_out(level, turn);
            self.line_up(number, level);
        }
        Some(id)
    }

    fn finished(&mut self, keys: &mut Keys<'_, K, FlowPlace>, id: KeyId) -> bool {
        let number = keys.slot(id).flow;
        let max_running = self.max_running;
        let flow = self.flow(number);
        let was_at_limit = flow.running == max_running;
        flow.running -= 1;
        let waiting: Vec<_> = if was_at_limit {
            flow.lanes.keys().copied().collect()
        } else {
            Vec::new()
        };
        for level in &waiting {
            self.line_up(number, *level);
        }
        // A call that comes before its worker has taken a key leaves room for another one.
        let may_run_more = max_running != usize::MAX && !self.flow(number).lanes.is_empty();
        self.forget_idle(number);
        may_run_more
    }

    fn clear(&mut self, _: &mut Keys<'_, K, FlowPlace>) {
        self.turns.clear();
        self.len = 0;
        for number in 0..self.flows.len() {
            if let Some(flow) = self.flows.get_mut(number).and_then(Option::as_mut) {
                flow.lanes.clear();
                self.forget_idle(number);
            }
        }
    }

    fn len(&self) -> usize {
        self.len
    }
}

impl<K, F> fmt::Debug for Fair<K, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fair")
            .field("flows", &self.numbers.len())
            .field("ready", &self.len)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{core::Core, key::hash_of};

    #[test]
    fn w72_a_flow_without_keys_takes_no_memory() {
        let mut core = Core::new(Fair::new(|key: &u32| key % 10));
        let flows = |core: &Core<u32, Fair<u32, u32>>| {
            let fair = core.order();
            (
                fair.numbers.len(),
                fair.turns.values().map(BTreeMap::len).sum::<usize>(),
            )
        };
        for key in 0..100 {
            let (id, _) = core.intern(key, hash_of(&key));
            core.want(id, 0);
        }
        assert_eq!(flows(&core), (10, 10));
        let running: Vec<_> = std::iter::from_fn(|| core.take()).collect();
        assert_eq!(
            flows(&core),
            (10, 0),
            "running keys count against their flow's limit"
        );
        for id in running {
            core.finish(id, 0);
        }
        assert_eq!(flows(&core), (0, 0));
        assert_eq!(
            (
                core.order().flows.capacity(),
                core.order().vacant.capacity()
            ),
            (0, 0)
        );
    }
}
