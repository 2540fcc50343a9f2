"""What the page says, before any browser."""

from __future__ import annotations

import json
import re

import pytest
from PIL import Image

from torchrl_dceo.cli import study as cli
from torchrl_dceo.studies.report import make_report
from torchrl_dceo.studies.report.numbers import read_numbers
from torchrl_dceo.studies.report.tables import findings


def data_of(page):
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(found[1])


def test_the_page_stands_alone(page):
    text = page.read_text()
    assert page.name == "report.html" and len(text) < 1_000_000
    # No file, no address: what it loads is in it.
    loaded = re.findall(r"(?:src|href)=\"([^\"]*)\"", text) + re.findall(r"url\(([^)]*)\)", text)
    assert loaded and all(address.startswith(("#", "data:")) for address in loaded)
    assert "@import" not in text and "$" not in re.sub(r"\$\{", "", text.partition("<script")[0])


def test_text_is_escaped(page):
    text = page.read_text()
    assert "<h1>Made up &amp; &lt;tested&gt;</h1>" in text
    assert "&#x27;laptop&#x27; &amp;&amp; echo &lt;done&gt;" in text
    assert "note: &lt;b&gt;&amp;&lt;/b&gt;" in text and "python &lt;it&gt;" in text
    assert "<tested>" not in text and "<done>" not in text


def test_the_table_has_intervals_spread_frames_coverage_and_who_beats_whom(page):
    text = re.sub(r"<svg.*?</svg>", "", page.read_text(), flags=re.DOTALL)
    rows = re.findall(r"<tr><th scope=\"row\">.*?</tr>", text, re.DOTALL)
    cells = [re.sub(r"<[^>]+>", "", cell) for cell in re.findall(r"<td>(.*?)</td>", rows[3])]
    environment = read_numbers(page.parent, 50).summaries[3]
    assert (environment.environment, environment.agent) == ("NineRooms", "dceo")
    # Its seeds end at 1.0 and 0.9.
    assert cells[:4] == ["2", "0.95 [0.90, 1.00]", "", "0.95 ± 0.07"]
    assert cells[5] == "1.5k (2/2)" and cells[6] == "10 [10, 11]" and cells[7].endswith("%")


def test_the_data_of_the_charts(page):
    data = data_of(page.read_text())
    assert data["environments"] == ["GoalSwitch", "NineRooms"]
    assert data["agents"] == ["dceo", "dceo_two_phase", "ddqn"]
    curve = data["curves"]["NineRooms"]["eval_return"]
    assert curve["grid"] == [1000 * i for i in range(1, 11)]
    dceo = curve["agents"]["dceo"]
    assert dceo["seeds"] == {
        "0": pytest.approx([i / 10 for i in range(1, 11)]),
        "1": pytest.approx([(i - 1) / 10 for i in range(1, 11)]),
    }
    assert dceo["iqm"][-1] == dceo["mean"][-1] == 0.95 and dceo["low"][-1] == 0.9
    assert list(data["curves"]["NineRooms"]["option_climb"]["agents"]) == ["dceo", "dceo_two_phase"]
    assert data["marks"]["GoalSwitch"]["switches"] == [5000]
    assert data["marks"]["NineRooms"] == {"switches": [], "discovery": {"dceo_two_phase": 4000}}
    by_score = {one["key"]: one["environments"] for one in data["profiles"]}
    assert by_score["final"]["NineRooms"]["levels"] == [0, 0.225, 0.25, 0.72, 0.8, 0.9, 1]
    assert by_score["final"]["NineRooms"]["agents"]["dceo"]["value"] == [1, 1, 1, 1, 1, 0.5, 0]
    measures = {one["key"]: one["environments"] for one in data["improvement"]}
    assert measures["final_eval_return"]["NineRooms"]["dceo"]["ddqn"] == [1, 1, 1]
    assert "all environments" in measures["area_eval_return"]


def test_origin_and_adaptation_are_told(page):
    text = page.read_text()
    assert "0123abc" in text and "2.13.0" in text and "Seeds: 0, 1." in text
    assert "11 of 12" in text and "Maze_rnd_3" in text
    assert "When the environment changed" in text and "After GoalSwitch changed" in text
    assert "After NineRooms changed" not in text


def test_findings_are_a_sentence_an_environment_and_a_caution(study):
    told = findings(read_numbers(study[0], 50))
    assert told[0].endswith(
        " After the environment changed dceo has most: in the last fifth a return of 0.50 (0.25 in training), "
        "dceo_two_phase 0.40 (0.20)."
    )
    assert "After the environment changed" not in told[1]
    assert told[1].startswith(
        "<strong>NineRooms</strong>: dceo has the most greedy return over the run, 0.4"
    )
    assert told[1].endswith(
        "the next best (a run of it is better with probability 1.00 [1.00, 1.00]); "
        "it ends at 0.95 [0.90, 1.00] (2 seeds)."
    )
    assert told[2] == "Some agents have no more than 2 finished seeds: differences may be chance."


def test_arrays_are_kept_so_that_the_page_can_be_made_from_the_results(study, page):
    folder, _ = study
    kept = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.npz"))
    assert kept == [
        f"{environment}/{agent}/seed_0/analysis.npz"
        for environment in ("GoalSwitch", "NineRooms")
        for agent in ("dceo", "ddqn")
    ]
    again = folder.parent / "again.html"
    assert (
        cli.main(
            ["report", str(folder), "--out", str(again), "--repetitions", "50", "--title", "Again"]
        )
        == 0
    )
    first, second = page.read_text(), again.read_text()
    assert "<h1>Again</h1>" in second
    assert first.count('class="learned"') == second.count('class="learned"') == 4
    assert data_of(first) == data_of(second)


def test_pictures_and_tables_make_a_page_without_logs(tmp_path, capsys):
    Image.new("RGB", (1800, 600), "red").save(tmp_path / "wide_picture.png")
    (tmp_path / "broken.png").write_bytes(b"no picture")
    (tmp_path / "deep").mkdir()
    rows = "\n".join(f"{i},<i>{i}</i>" for i in range(100))
    (tmp_path / "deep" / "table.csv").write_text(f"agent,score\n{rows}\n")
    (tmp_path / "short.csv").write_text("a,b\n1,2\n")
    (tmp_path / "README.md").write_text("# A script\n\n    python script.py\n\nCommit `abcdef1`.\n")
    assert cli.main(["report", str(tmp_path)]) == 0
    text = (tmp_path / "report.html").read_text()
    assert "<h1>A script</h1>" in text and "python script.py" in text and "abcdef1" in text
    assert 'alt="Wide picture"' in text and 'width="1500" height="500"' in text
    assert text.count("<img") == 1
    assert 0 < text.index("short.csv") < text.index("deep/table.csv")  # what is whole comes first
    assert "The first 12 of 100 rows" in text
    assert "<td>&lt;i&gt;0&lt;/i&gt;</td>" in text and 'id="curves"' not in text


def test_unfinished_runs_have_curves_but_no_scores(tmp_path):
    folder = tmp_path / "Maze" / "dceo"
    folder.mkdir(parents=True)
    (folder / "seed_0.csv").write_text("frames,eval_return\n100,0.5\n200,0.75\n")
    (folder / "config.yaml").write_text("agent: {name: dceo}\nseed: 0\ntotal_frames: 500\n")
    page = make_report(tmp_path, title="t", summary="", commands=[]).read_text()
    assert "no run has finished yet" in page
    assert 'id="curves"' in page and 'id="profiles"' not in page and 'id="improvement"' not in page


def test_a_study_of_coverage_is_about_coverage(tmp_path):
    for agent, speed in (("dceo", 3), ("ddqn", 1)):
        folder = tmp_path / "NineRooms" / agent
        folder.mkdir(parents=True)
        rows = "".join(f"{i * 100},0.0,{i * speed}\n" for i in range(1, 6))
        (folder / "seed_0.csv").write_text("frames,train_return,coverage\n" + rows)
    page = make_report(tmp_path, title="t", summary="", commands=[]).read_text()
    assert "dceo has the most states visited over the run, 8, against 3 of ddqn" in page


def test_damaged_arrays_cost_their_pictures_only(tmp_path, caplog):
    folder = tmp_path / "Maze" / "dceo"
    folder.mkdir(parents=True)
    (folder / "seed_0.csv").write_text("frames,eval_return\n100,0.5\n")
    (folder / "analysis.npz").write_bytes(b"nothing")
    page = make_report(tmp_path, title="t", summary="", commands=[])
    assert "<img" not in page.read_text() and "is damaged" in caplog.text


def test_what_cannot_be_shown_is_said_in_one_sentence(tmp_path, capsys):
    with pytest.raises(ValueError, match="holds nothing to show"):
        make_report(tmp_path, title="t", summary="s", commands=["c"])
    (tmp_path / "study.json").write_text("{")
    assert (
        cli.main(["report", str(tmp_path)]) == 2
        and "study.json is no JSON" in capsys.readouterr().err
    )
    (tmp_path / "study.json").write_text("[]")
    assert cli.main(["report", str(tmp_path)]) == 2 and "got a list" in capsys.readouterr().err
