"""Run tables in the file formats of RegMix and Olmix, and invalid tables, each of which is reported in one
line.
"""

import numpy as np
import pytest

from gristmill.errors import ConfigError
from trainers.__main__ import main
from trainers.studies.fit_study import fit_metrics, laws_of
from trainers.studies.run_table import align_domains, read_run_table

RATIOS = "index,web,code\n1,0.25,0.75\n2,0.5,0.5\n3,1,0\n"
METRICS = "index,loss,accuracy\n3,1.5,0.1\n1,2.5,0.2\n2,2.0,0.3\n"


def table(tmp_path, ratios=RATIOS, metrics=METRICS, **options):
    (tmp_path / "ratios.csv").write_text(ratios)
    (tmp_path / "metrics.csv").write_text(metrics)
    return read_run_table(tmp_path / "ratios.csv", tmp_path / "metrics.csv", **options)


def test_rows_are_joined_by_their_key(tmp_path):
    read = table(tmp_path, higher_is_better=["accuracy"])
    assert read.runs == ("1", "2", "3")
    assert read.domains == ("web", "code")
    assert read.values.tolist() == [[2.5, -0.2], [2.0, -0.3], [1.5, -0.1]]
    assert read.select(["accuracy"]).values.tolist() == [[-0.2], [-0.3], [-0.1]]


def test_the_columns_of_olmix_are_keys_and_no_domains(tmp_path):
    ratios = "run,name,index,web,code\na1,first,0,0.4,0.6\nb2,second,1,0.6,0.4\n"
    metrics = "run,name,index,bpb\nb2,second,0,1.0\na1,first,1,2.0\n"
    read = table(tmp_path, ratios, metrics)
    assert (read.runs, read.domains) == (("a1", "b2"), ("web", "code"))
    assert read.values[:, 0].tolist() == [2.0, 1.0]
    assert table(tmp_path, ratios.replace("run,", "run_id,"), metrics.replace("run,", "run_id,")).runs == ("a1", "b2")


@pytest.mark.parametrize("value", ["", "nan", "inf", "-inf"])
def test_a_diverged_run_is_censored(tmp_path, value):
    read = table(tmp_path, metrics=METRICS.replace("2.0", value))
    assert read.censored.tolist() == [[False, False], [True, False], [False, False]]


@pytest.mark.parametrize(
    ("ratios", "metrics", "message"),
    [
        (RATIOS.replace("0.75", "0.7"), METRICS, "1 of 3 mixtures do not sum to 1 (index 1 to 0.95)"),
        (RATIOS.replace("0.75", "-0.75"), METRICS, "index 1: a share is missing or negative"),
        (RATIOS.replace("0.75", ""), METRICS, "index 1: a share is missing or negative"),
        (RATIOS.replace("0.75", "much"), METRICS, "row 2, code: got 'much', expected a number"),
        (RATIOS.replace("3,1,0\n", ""), METRICS, "has no row for 1 of 3 runs of"),
        (RATIOS, METRICS.replace("3,1.5,0.1\n", ""), "has no row for 1 of 3 runs of"),
        (RATIOS.replace("3,", "2,"), METRICS, "the run index 2 has two rows"),
        (RATIOS.replace("code", "web"), METRICS, "the column 'web' occurs twice"),
        (RATIOS, METRICS.replace("1.5,", ""), "row 2 has 2 cells, the header has 3"),
        (RATIOS.replace("index", "number"), METRICS, "has no column that names runs"),
        (RATIOS.replace("index", "run"), METRICS, "shares no key with"),
        (
            "run,index,web\na,0.4,0.6\n",
            "run,loss\na,1\n",
            "(run a to 0.6); correct them, or give --normalise to divide",
        ),
        ("run,index,web\na,0.4,0.6\n", "run,loss\na,1\n", "sum; if index is a domain, give --key run"),
        ("run,index,web\na,3,1\n", "run,web,index\na,1,2\n", "index is read as a key, but"),
        (RATIOS, "index,item,loss\n1,q,1\n1,r,1\n2,q,1\n2,r,1\n3,q,1\n", "index 3 has no row for item r"),
        (RATIOS, "index,item,loss\n1,q,1\n1,q,1\n", "the item q of index 1 has two rows"),
        (
            RATIOS,
            "index,name,item,loss\n1,a,q,1\n1,b,r,1\n2,a,q,1\n2,a,r,1\n",
            "index 1 has rows with name 'a' and 'b'; a run has one name",
        ),
        ("index\n1\n", METRICS, "has only the columns index"),
        ("", METRICS, "has no rows"),
    ],
)
def test_a_bad_table_is_an_error_of_one_line(tmp_path, ratios, metrics, message):
    with pytest.raises(ConfigError) as error:
        table(tmp_path, ratios, metrics)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_a_directory_is_no_table(tmp_path):
    with pytest.raises(ConfigError, match="is a directory; give a CSV file"):
        read_run_table(tmp_path, tmp_path)


def test_a_domain_may_have_the_name_of_a_key(tmp_path):
    ratios, metrics = "run,index,name,run\na,0.2,0.3,0.5\nb,0.3,0.3,0.4\n", "run,index\nb,2\na,1\n"
    read = table(tmp_path, ratios, metrics, key="run")
    assert (read.domains, read.metrics) == (("index", "name", "run"), ("index",))
    assert read.values[:, 0].tolist() == [1, 2]
    later = table(tmp_path, "run,code,index\na,0.5,0.5\nb,0.3,0.7\n", metrics.replace("index", "loss"))
    assert later.domains == ("code", "index")
    with pytest.raises(ConfigError, match="--key: got 'id', the columns are run, index"):
        table(tmp_path, ratios, metrics, key="id")


def test_a_domain_may_be_called_item(tmp_path):
    read = table(tmp_path, "run,item,web\na,0.2,0.8\nb,0.3,0.7\n", "run,item,web\na,1,2\nb,3,4\n")
    assert (read.domains, read.metrics) == (("item", "web"), ("item", "web"))
    assert read.values.tolist() == [[1, 2], [3, 4]]
    named = table(tmp_path, "run,web,code\na,0.2,0.8\nb,0.3,0.7\n", "run,item,loss\na,q1,1\nb,q1,2\n")
    assert (named.metrics, named.values.tolist()) == (("loss",), [[1], [2]])


def test_results_per_item_are_averaged_and_an_item_without_a_value_censors_its_run(tmp_path):
    rows = ["1,q,1,", "1,r,0,", "1,s,,4", "2,q,1,", "2,r,1,", "2,s,,5", "3,q,nan,", "3,r,1,", "3,s,,6"]
    read = table(tmp_path, metrics="\n".join(["index,item,correct,bits", *rows]), higher_is_better=["correct"])
    assert read.runs == ("1", "2", "3")
    assert read.values[:2].tolist() == [[-0.5, 4], [-1, 5]]
    assert read.censored.tolist() == [[False, False], [False, False], [True, False]]


def test_only_the_chosen_metrics_are_read(tmp_path):
    metrics = "index,comment,loss\n1,good,1\n2,,2\n3,bad,3\n"
    assert table(tmp_path, metrics=metrics, chosen=["loss"]).metrics == ("loss",)
    with pytest.raises(ConfigError, match="has no column 'los'; it has comment, loss"):
        table(tmp_path, metrics=metrics, chosen=["los"])
    with pytest.raises(ConfigError, match="row 2, comment: got 'good', expected a number"):
        table(tmp_path, metrics=metrics)


def test_a_metric_that_no_run_has_is_an_error(tmp_path):
    read = table(tmp_path, metrics="index,loss\n1,nan\n2,\n3,inf\n")
    with pytest.raises(ConfigError, match="loss: no run has a value; leave this metric out"):
        fit_metrics(read, laws_of(["linear"]))


def test_mixtures_are_normalised_only_on_request(tmp_path):
    read = table(tmp_path, RATIOS.replace("0.75", "0.5"), normalise=True)
    assert read.ratios[0].tolist() == pytest.approx([1 / 3, 2 / 3])


def test_domains_are_aligned_by_name(tmp_path):
    first = table(tmp_path)
    other = table(tmp_path, RATIOS.replace("web,code", "code,web"))
    assert align_domains(first, other, "other.csv").ratios.tolist() == other.ratios[:, ::-1].tolist()
    with pytest.raises(ConfigError, match=r"other.csv: has also maths and lacks code"):
        align_domains(first, table(tmp_path, RATIOS.replace("code", "maths")), "other.csv")


def test_too_few_runs_are_an_error(tmp_path):
    with pytest.raises(ConfigError, match="loss: 3 of 3 runs have a value; the law log_linear of 2 domains needs 10"):
        fit_metrics(table(tmp_path), laws_of(["log_linear"]))
    with pytest.raises(ConfigError, match="--law: got 'cubic', allowed log_linear, linear"):
        laws_of(["cubic"])


def test_scores_need_two_test_runs_with_a_value(tmp_path):
    rows = range(12)
    ratios = "\n".join(["index,web,code", *(f"{i},{i / 16},{1 - i / 16}" for i in rows)])
    runs = table(tmp_path, ratios, "\n".join(["index,loss", *(f"{i},{2 + i % 5}" for i in rows)]))
    tests = table(tmp_path, metrics="index,loss\n1,nan\n2,1.5\n3,\n")
    with pytest.raises(ConfigError, match="loss: 1 of 3 test runs have a value; scores need 2 or more"):
        fit_metrics(runs, laws_of(["linear"]), tests)


def test_the_command_fits_and_scores(tmp_path, capsys):
    generator = np.random.default_rng(0)
    shares = generator.dirichlet([1, 1, 1], 40)
    losses = 1 + np.exp(shares @ [-2, 0, 1])
    for name, rows in (("train", range(30)), ("test", range(30, 40))):
        ratios = [f"{i},{','.join(f'{share:.9f}' for share in shares[i])}" for i in rows]
        metrics = [f"{i},{'' if i == 3 else losses[i]}" for i in rows]
        (tmp_path / f"{name}_ratios.csv").write_text("\n".join(["index,a,b,c", *ratios]))
        (tmp_path / f"{name}_metrics.csv").write_text("\n".join(["index,loss", *metrics]))
    files = {f"--{part}": f"{tmp_path}/train_{part}.csv" for part in ("ratios", "metrics")}
    files |= {f"--test-{part}": f"{tmp_path}/test_{part}.csv" for part in ("ratios", "metrics")}
    words = [word for pair in files.items() for word in pair]
    assert main(["study", "fit", *words, "--output", f"{tmp_path}/fit.json"]) == 0
    printed = capsys.readouterr().out
    assert "loss: 1 runs have no value and count as no better than the worst: 3" in printed
    assert "  1.000\n" in printed
    assert (tmp_path / "fit.json").exists()
