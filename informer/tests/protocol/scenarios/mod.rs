//! What must hold on every API server.

pub(crate) mod connections;
pub(crate) mod factories;
pub(crate) mod follow;
pub(crate) mod kills;
pub(crate) mod kinds;
pub(crate) mod lists;
pub(crate) mod namespaces;
pub(crate) mod objects;
pub(crate) mod restarts;
pub(crate) mod secrets;
pub(crate) mod watches;

/// Makes one test of each scenario, given a function that builds its world (or none, where it cannot).
#[macro_export]
macro_rules! for_every_scenario {
    ($world:path) => {
        $crate::scenarios_of!($world, Alone, follow:
            changes_cuts_and_forgotten_states_are_followed_by_list_and_watch,
            changes_cuts_and_forgotten_states_are_followed_by_streamed_lists,
            r4_a_forgotten_page_leads_to_one_whole_list,
        );
        $crate::scenarios_of!($world, Shared, lists:
            a_list_comes_in_pages_of_one_moment,
            r2_a_version_too_large_is_answered_by_the_newest_state,
            r2_a_version_too_large_of_a_stream_is_answered_by_the_newest_state,
            i38_a_throttled_list_waits_as_long_as_the_server_asks,
            lists_cut_at_any_byte_are_made_again,
            streamed_lists_cut_at_any_byte_end_in_the_same_state,
            compressed_answers_are_read_or_refused_in_words,
        );
        $crate::scenarios_of!($world, Shared, watches:
            i34_a_refusal_of_the_version_leads_to_a_list_wherever_it_comes,
            r9_a_throttled_watch_is_opened_again_without_a_list,
            watches_broken_at_every_byte_go_on_without_a_list,
            watches_ended_at_any_byte_lose_and_repeat_nothing,
            a_watch_that_goes_silent_is_given_up,
        );
        $crate::scenarios_of!($world, Alone, restarts:
            a_restart_loses_and_repeats_nothing_by_list_and_watch,
            a_restart_loses_and_repeats_nothing_by_streamed_lists,
            a_server_that_lost_its_state_is_followed_by_list_and_watch,
            a_server_that_lost_its_state_is_followed_by_streamed_lists,
        );
        $crate::scenarios_of!($world, Shared, factories:
            h15_a_factory_shares_typed_dynamic_and_metadata_informers,
        );
        $crate::scenarios_of!($world, Shared, connections:
            informers_by_http2_share_one_connection_and_by_http1_have_one_each,
        );
        $crate::scenarios_of!($world, Shared, namespaces:
            i103_all_other_namespaces_are_followed_beside_the_named_one,
        );
        $crate::scenarios_of!($world, Shared, kinds:
            i42_a_kind_that_comes_late_goes_and_comes_back_is_followed,
            r18_objects_of_a_foreign_schema_are_left_out_and_named,
        );
        $crate::scenarios_of!($world, Shared, objects:
            objects_of_a_mebibyte_are_listed_and_watched,
        );
        $crate::scenarios_of!($world, Shared, secrets:
            a_metadata_informer_is_never_sent_secret_data,
        );
        $crate::scenarios_of!($world, Alone, kills:
            caches_and_handlers_equal_the_server_after_kills,
        );
    };
}

/// One module of scenarios as tests.
#[macro_export]
macro_rules! scenarios_of {
    ($world:path, $use:ident, $module:ident: $($name:ident),+ $(,)?) => {
        mod $module {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    let Some(world) = $world($crate::world::Use::$use).await else { return };
                    Box::pin($crate::scenarios::$module::$name(&world)).await;
                    world.shutdown().await;
                }
            )+
        }
    };
}
