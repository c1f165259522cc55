"""Daemons work together only with one node list, and each job only with its own epoch."""

import luwu
import pytest
from training import small_job, train_a_little


def test_daemons_with_different_node_lists_refuse_each_others_clients(start_cluster):
    cluster = start_cluster(nodes=2)
    cluster.stop(1)
    config = cluster.folder / "node1" / "luwud.toml"
    text = cluster.config_text(1)
    assert text.count("weight = 1") == 2
    config.write_text(text.replace("weight = 1", "weight = 2", 1))
    cluster.start(1)
    for node in cluster.nodes:
        with pytest.raises(luwu.LuwuError) as caught:
            luwu.Session(node.control, small_job(), 0)
        assert "node list" in str(caught.value)
        assert caught.value.code == luwu.SchemaMismatchError.code
    # With one list again they do.
    cluster.stop(1)
    config.write_text(text)
    cluster.start(1)
    train_a_little(cluster.endpoints, "auto")


def test_a_node_of_weight_0_serves_no_shards_and_stands_in_nobodys_way(start_cluster):
    cluster = start_cluster(nodes=3, weights=[0, 1, 2])
    for node in cluster.nodes:
        train_a_little(node.control, "auto")


def test_a_daemon_that_lost_its_jobs_says_so(start_cluster):
    cluster = start_cluster(nodes=2)
    job = small_job()
    with luwu.Session(cluster.endpoints, job, 0, node_timeout_s=1) as session:
        session.finish_load(allow_missing=True)
        cluster.kill(1)
        cluster.start(1)
        with pytest.raises(luwu.LuwuError) as caught:
            for step in range(100):
                session.begin_step(step)
                for layer in range(2):
                    session.close_layer(layer)
                session.commit(step, timeout_s=20)
        assert isinstance(caught.value, luwu.SessionLostError), caught.value
        assert "node1" in str(caught.value)
