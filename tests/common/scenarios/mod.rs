//! What must hold on every API server. Each scenario gets a world of its own.

pub(crate) mod bad_input;
pub(crate) mod budget;
pub(crate) mod crash;
pub(crate) mod external;
pub(crate) mod history;
pub(crate) mod kills;
pub(crate) mod lifecycle;
pub(crate) mod namespaces;
pub(crate) mod orphans;
pub(crate) mod replicas;
pub(crate) mod secrets;
pub(crate) mod steady;

/// Makes one test of each scenario, given a function that builds its world (or none, where it cannot).
#[macro_export]
macro_rules! for_every_scenario {
    ($world:path) => {
        $crate::scenarios_of!($world, lifecycle:
            t01_a_managed_fleet_gets_ready_and_forwards,
            t03_a_deleted_proxy_goes_after_its_pod,
            t05_a_changed_machine_is_replaced_under_the_same_name,
            t06_what_is_not_in_the_hash_replaces_nothing,
            t13_a_pod_deleted_by_hand_is_made_again_once,
            t34_a_proxy_deleted_at_once_leaves_nothing,
            the_operator_ends_on_sigterm_and_leaves_the_fleet_as_it_is,
        );
        $crate::scenarios_of!($world, external:
            t02_an_external_proxy_is_ready_without_finalizer_or_pod,
            t04_an_external_proxy_goes_at_once,
            t09_a_proxy_that_turns_external_and_back_leaves_no_pod_behind,
        );
        $crate::scenarios_of!($world, secrets:
            t07_other_bytes_replace_equal_bytes_do_not,
            a_proxy_waits_for_its_secret_and_starts_when_it_comes,
            a_deleted_secret_keeps_the_running_proxy_in_service,
            inline_cloud_init_lives_and_dies_with_the_pod,
            credentials_are_asked_of_clients_and_stand_in_no_log,
            no_byte_of_a_secret_is_in_any_output,
        );
        $crate::scenarios_of!($world, bad_input:
            b08_an_unknown_provider_is_named_with_the_configured_ones,
            t39_a_permanent_error_is_silent_until_the_spec_changes,
            t45_a_foreign_pod_under_our_name_is_left_alone,
        );
        $crate::scenarios_of!($world, history:
            t01_a_managed_proxy_on_sim_has_the_exact_history_of_conditions_and_events,
            r13_a_replacement_and_a_deletion_are_told_once_each_with_their_cause,
        );
        $crate::scenarios_of!($world, budget:
            a_creation_costs_at_most_ten_requests_and_a_replacement_sixteen,
        );
        $crate::scenarios_of!($world, steady:
            t14_a_settled_fleet_writes_nothing,
        );
        $crate::scenarios_of!($world, orphans:
            t82_a_pod_whose_proxy_was_deleted_by_force_is_reported_and_in_mode_delete_goes,
            t83_nothing_goes_while_the_api_server_fails_lists_nothing_or_knows_no_proxies,
            t84_pods_of_another_cluster_and_pods_with_forged_labels_are_never_touched,
            t86_thirty_orphans_stop_the_collection_and_go_five_per_cycle_by_their_count,
            g01_a_proxy_that_lost_its_record_and_failed_gets_its_pod_back,
            g06_a_changed_cluster_id_is_refused_while_pods_carry_the_old_one,
        );
        $crate::scenarios_of!($world, namespaces:
            o03_an_operator_of_chosen_namespaces_needs_no_right_on_the_cluster,
        );
        $crate::scenarios_of!($world, replicas:
            t29_a_leader_that_dies_amid_a_creation_is_followed_by_the_standby,
            o07_a_leader_that_is_told_to_stop_gives_the_lease_back_and_the_standby_goes_on,
        );
        $crate::scenarios_of!($world, kills:
            sigkill_at_random_moments_leaks_doubles_and_blocks_nothing,
        );
        $crate::scenarios_of!($world, crash:
            t16_cp1_before_the_create_call,
            t17_cp2_create_accepted_answer_lost,
            t18_cp3_create_answered_before_the_annotation,
            t19_cp4_annotation_written_before_the_status,
            t20_cp5_status_written,
            t21_cp6_replacement_gone_annotation_written_id_kept,
            t22_cp7_delete_accepted_status_not_written,
            t23_cp8_instance_gone_finalizer_still_there,
            t24_cp9_finalizer_removed_before_the_status,
            t25_cp10_finalizer_added,
        );
    };
}

/// One module of scenarios as tests.
#[macro_export]
macro_rules! scenarios_of {
    ($world:path, $module:ident: $($name:ident),+ $(,)?) => {
        mod $module {
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $name() {
                    let Some(world) = $world().await else { return };
                    $crate::common::scenarios::$module::$name(&world).await;
                    world.shutdown().await;
                }
            )+
        }
    };
}
