"""Every shipped task reads its data set as the authors distribute it. The tests use small files with the
official names.
"""

import gzip
import json

import pytest

from trainers.tasks.load_task import load_task, shipped_tasks
from trainers.tasks.read_examples import read_examples
from trainers.tasks.read_facts import read_facts
from trainers.tasks.task_files import available_splits
from trainers.tasks.text_to_text import render_inputs, render_targets


def lines(*records):
    return "".join(json.dumps(record) + "\n" for record in records)


def tsv(*rows):
    return "".join("\t".join(row.split("|")) + "\n" for row in rows)


PAIR = "index|sentence1|sentence2|label"
NLI = (
    "index|promptID|pairID|genre|sentence1_binary_parse|sentence2_binary_parse|sentence1_parse|sentence2_parse|"
    "sentence1|sentence2|label1"
)
NLI_ROW = "0|1|1e|fiction|(a)|(b)|(c)|(d)|He ran.|He moved.|entailment"
STS = "index|genre|filename|year|old_index|source1|source2|sentence1|sentence2"
STS_ROW = "0|main-captions|MSRvid|2012test|0001|none|none|A plane takes off.|An air plane takes off."
UD = (
    "# sent_id = s1\n1-2\tdon't"
    + "\t_" * 8
    + "\n1\tdo\tdo\tAUX\t_\tNumber=Plur|Tense=Pres\t0"
    + "\t_" * 3
    + "\n2\tn't\tnot\tPART\t_\t_\t1"
    + "\t_" * 3
    + "\n\n"
)
CONLL = (
    "-DOCSTART- -X- -X- O\n\nEU NNP B-NP I-ORG\nrejects VBZ B-VP O\nGerman JJ B-NP I-MISC\n\nPeter NNP B-NP I-PER\n\n"
)
WSC = {
    "text": "Ann told Bo that she won.",
    "target": {"span1_index": 0, "span1_text": "Ann", "span2_index": 4, "span2_text": "she"},
}
WIC = {
    "word": "bank",
    "sentence1": "A bank.",
    "sentence2": "The bank.",
    "start1": 2,
    "end1": 6,
    "start2": 4,
    "end2": 8,
    "version": 1.1,
}
COPA = {"premise": "It rained.", "choice1": "It was wet.", "choice2": "It was dry.", "question": "effect"}
BOOLQ = {"question": "is it so", "passage": "It is so."}
NLI_PAIR = {"premise": "He ran.", "hypothesis": "He moved."}
SWAG = "video-id,fold-ind,startphrase,sent1,sent2,gold-source,ending0,ending1,ending2,ending3"
SWAG_ROW = '1,v,"He runs, she",He runs,she,gold,walks.,"sits, too.",sleeps.,eats.'
ASKED = {"query": "It rained.", "choices": ["It was wet.", "It was dry."], "gold": 1}
HELLA = {
    "ind": 4,
    "activity_label": "Roof",
    "ctx_a": "A man.",
    "ctx_b": "he",
    "ctx": "A man. he",
    "endings": ["a", "b", "c", "d"],
}
BOOK = {
    "id": "7-980",
    "question": {"stem": "The sun", "choices": [{"text": f"t{x}", "label": x} for x in "ABCD"]},
    "answerKey": "D",
}
SQUAD = {"data": [{"title": "t", "paragraphs": [{"context": "Rome fell.", "qas": [
    {"id": "a", "question": "What fell?", "answers": [{"text": "Rome", "answer_start": 0}]}]}]}]}  # fmt: skip
SQUAD2 = {"version": "v2.0", "data": [{"title": "t", "paragraphs": [{"context": "Rome fell.", "qas": [
    {"id": "a", "question": "What fell?", "answers": [{"text": "Rome", "answer_start": 0}], "is_impossible": False},
    {"id": "b", "question": "Why?", "answers": [], "is_impossible": True, "plausible_answers": []}]}]}]}  # fmt: skip


def multirc(label):
    answers = [{"text": f"answer {i}", "idx": i, **({"label": i} if label else {})} for i in range(2)]
    return {"idx": 3, "passage": {"text": "A text.", "questions": [{"question": "Who?", "answers": answers, "idx": 7}]}}


def record(answers):
    text = "Ann met Bo.\n@highlight\nBo won."
    query = {"query": "@placeholder won.", "idx": 1}
    query |= {"answers": [{"start": 8, "end": 9, "text": "Bo"}]} if answers else {}
    entities = [{"start": 8, "end": 9}, {"start": 0, "end": 2}, {"start": 23, "end": 24}]
    return {"source": "x", "passage": {"text": text, "entities": entities}, "qas": [query], "idx": 0}


DIALOGUE = {"fname": "d_0", "dialogue": "#Person1#: Hi.\n#Person2#: Hello.", "topic": "greeting"}
TALK = {
    "content": [{"message": " Do you  like it?", "agent": "agent_1"}, {"message": "Yes.", "agent": "agent_2"}],
    "config": "A",
}

# task -> {official path: content}; then, of one example of some split, texts and gold as a text-to-text target.
OFFICIAL = {
    "cola": {
        "CoLA/train.tsv": tsv("gj04|0|*|Him ran."),
        "CoLA/dev.tsv": tsv("gj04|1||He ran."),
        "CoLA/test.tsv": tsv("index|sentence", "0|He runs."),
    },
    "sst2": {
        "SST-2/train.tsv": tsv("sentence|label", "so good |1"),
        "SST-2/dev.tsv": tsv("sentence|label", "bad |0"),
        "SST-2/test.tsv": tsv("index|sentence", "0|fine"),
    },
    "mrpc": {
        f"MRPC/{split}.tsv": "\ufeff"
        + tsv("Quality|#1 ID|#2 ID|#1 String|#2 String", f'{n}|1|2|"He ran {split}.|He {n}.')
        for n, split in enumerate(["train", "dev"])
    }
    | {"MRPC/test.tsv": "\ufeff" + tsv("index|#1 ID|#2 ID|#1 String|#2 String", "0|1|2|A|B")},
    "stsb": {
        "STS-B/train.tsv": tsv(f"{STS}|score", f"{STS_ROW}|5.000"),
        "STS-B/dev.tsv": tsv(f"{STS}|score", f"{STS_ROW}|3.8"),
        "STS-B/test.tsv": tsv(STS, STS_ROW),
    },
    "qqp": {
        "QQP/train.tsv": tsv(
            "id|qid1|qid2|question1|question2|is_duplicate", "1|2|3|Why?|How?|0", "4|5|broken", "6|7|8|A?||1"
        ),
        "QQP/dev.tsv": tsv("id|qid1|qid2|question1|question2|is_duplicate", "1|2|3|Who?|Which?|1"),
        "QQP/test.tsv": tsv("id|question1|question2", "0|Why?|What?"),
    },
    "mnli": {"MNLI/train.tsv": tsv(f"{NLI}|gold_label", f"{NLI_ROW}|neutral")}
    | {
        f"MNLI/dev_{kind}.tsv": tsv(f"{NLI}|label2|gold_label", f"{NLI_ROW}|neutral|{label}")
        for kind, label in (("matched", "entailment"), ("mismatched", "contradiction"))
    }
    | {
        f"MNLI/test_{kind}.tsv": tsv(NLI.removesuffix("|label1"), NLI_ROW.removesuffix("|entailment"))
        for kind in ("matched", "mismatched")
    },
    "qnli": {
        "QNLI/train.tsv": tsv("index|question|sentence|label", "0|Who?|He.|entailment"),
        "QNLI/dev.tsv": tsv("index|question|sentence|label", "0|Why?|So.|not_entailment"),
        "QNLI/test.tsv": tsv("index|question|sentence", "0|How?|Thus."),
    },
    "rte": {f"RTE/{split}.tsv": tsv(PAIR, f"0|He ran {split}.|He moved.|entailment") for split in ("train", "dev")}
    | {"RTE/test.tsv": tsv(PAIR.removesuffix("|label"), "0|A|B")},
    "wnli": {f"WNLI/{split}.tsv": tsv(PAIR, f"0|He ran {split}.|He moved.|1") for split in ("train", "dev")}
    | {"WNLI/test.tsv": tsv(PAIR.removesuffix("|label"), "0|A|B")},
    "boolq": {
        "BoolQ/train.jsonl": lines({**BOOLQ, "label": True, "idx": 0}),
        "BoolQ/val.jsonl": lines({**BOOLQ, "label": False, "idx": 0}),
        "BoolQ/test.jsonl": lines({**BOOLQ, "idx": 0}),
    },
    "cb": {
        "CB/train.jsonl": lines({**NLI_PAIR, "label": "neutral", "idx": 0}),
        "CB/val.jsonl": lines({**NLI_PAIR, "label": "entailment"}),
        "CB/test.jsonl": lines(NLI_PAIR),
    },
    "copa": {
        "COPA/train.jsonl": lines({**COPA, "label": 0}),
        "COPA/val.jsonl": lines({**COPA, "label": 1}),
        "COPA/test.jsonl": lines(COPA),
    },
    "multirc": {
        "MultiRC/train.jsonl": lines(multirc(True)),
        "MultiRC/val.jsonl": lines(multirc(True)),
        "MultiRC/test.jsonl": lines(multirc(False)),
    },
    "record": {
        "ReCoRD/train.jsonl": lines(record(True)),
        "ReCoRD/val.jsonl": lines(record(True)),
        "ReCoRD/test.jsonl": lines(record(False)),
    },
    "wic": {
        "WiC/train.jsonl": lines({**WIC, "label": True}),
        "WiC/val.jsonl": lines({**WIC, "label": False}),
        "WiC/test.jsonl": lines(WIC),
    },
    "wsc": {
        "WSC/train.jsonl": lines({**WSC, "label": True}),
        "WSC/val.jsonl": lines({**WSC, "label": False}),
        "WSC/test.jsonl": lines(WSC),
    },
    "squad": {"SQuAD/train-v1.1.json": json.dumps(SQUAD), "SQuAD/dev-v1.1.json": json.dumps(SQUAD)},
    "squad2": {"SQuAD/train-v2.0.json": json.dumps(SQUAD2), "SQuAD/dev-v2.0.json": json.dumps(SQUAD2)},
    "conll2003": {f"conll2003/eng.{name}": CONLL for name in ("train", "testa", "testb")},
    "wnut17": {
        "wnut17/wnut17train.conll": "Rome\tB-location\n,\tO\n\n",
        "wnut17/emerging.dev.conll": "x\tO\n\t\nIt\tO\n",
        "wnut17/emerging.test.annotated": "New\tB-location\nYork\tI-location\n",
    },
    **{
        name: {f"UD_English-EWT/en_ewt-ud-{split}.conllu": UD for split in ("train", "dev", "test")}
        for name in ("ud_pos", "ud_number", "ud_tense", "ud_depth")
    },
    "swag": {
        "swag/train.csv": f",{SWAG},label\n0,{SWAG_ROW},1\n",
        "swag/val.csv": f",{SWAG},label\n0,{SWAG_ROW},3\n",
        "swag/test.csv": f",{SWAG}\n0,{SWAG_ROW}\n",
    },
    "piqa": {"icl/piqa.jsonl": lines(ASKED)},
    "arc_easy": {"icl/arc_easy.jsonl": lines(ASKED)},
    "copa_cloze": {"icl/copa.jsonl": lines(ASKED)},
    "winogrande": {
        "icl/winogrande.jsonl": lines(
            {"context_options": ["Ann won, so Ann", "Ann won, so Bo"], "continuation": "ran.", "gold": 1}
        )
    },
    "lambada": {"icl/lambada_openai.jsonl": lines({"context": "He sat on the", "continuation": "mat"})},
    "trex": {
        "trex/P19.jsonl": lines(
            {"uuid": "u1", "sub_label": "Ada Lovelace", "obj_label": "London"},
            {"uuid": "u2", "sub_label": "Fermi", "obj_label": "Rome"},
        ),
        "trex/relations.jsonl": lines(
            {
                "relation": "P19",
                "label": "place of birth",
                "template": "[X] was born in [Y] .",
                "type": "N-1",
                "paraphrases": ["[X] was born in [Y].", "The birthplace of [X] is [Y]", "[Y] is where [X] was born."],
            }
        ),
    },
    "blimp": {
        f"blimp/data/{uid}.jsonl": lines(
            {"sentence_good": "He ran.", "sentence_bad": "He run.", "UID": uid, "field": field}
        )
        for uid, field in (("a_1", "syntax"), ("b_2", "syntax/semantics"))
    },
    "hellaswag": {
        "hellaswag/hellaswag_train.jsonl": lines({**HELLA, "label": 2}),
        "hellaswag/hellaswag_val.jsonl": lines({**HELLA, "label": "3"}),
        "hellaswag/hellaswag_test.jsonl": lines(HELLA),
    },
    "openbookqa": {f"OpenBookQA-V1-Sep2018/Data/Main/{split}.jsonl": lines(BOOK) for split in ("train", "dev", "test")},
    "imdb": {
        "aclImdb/train/pos/0_9.txt": "good",
        "aclImdb/train/neg/0_2.txt": "bad",
        "aclImdb/train/unsup/0_0.txt": "none",
        "aclImdb/test/pos/0_7.txt": "fine",
    },
    "trec": {
        "TREC/train_5500.label": "DESC:manner How did serfdom develop ?\nENTY:animal What is a mo\u00e1 ?\n",
        "TREC/TREC_10.label": "NUM:dist How far is it ?\n",
    },
    "sst5": {f"trees/{split}.txt": "(3 (2 It) (4 (2 works) (2 -LRB-)))\n" for split in ("train", "dev", "test")},
    "dialogsum": {
        f"DialogSum_Data/dialogsum.{split}.jsonl": lines({**DIALOGUE, "summary": "They greet."})
        for split in ("train", "dev")
    }
    | {"DialogSum_Data/dialogsum.test.jsonl": lines({**DIALOGUE, **{f"summary{i}": f"S{i}." for i in (1, 2, 3)}})},
    "multi30k": {
        f"multi30k/data/task1/raw/{name}.{language}.gz": text
        for name in ("train", "val", "test_2016_flickr")
        for language, text in (("en", "A man.\n"), ("de", "Ein Mann.\n"))
    },
    "svamp": {
        "svamp/svamp.jsonl": lines({"context": "He had 2 and took 1. How many?", "chain_of_thought": "", "answer": "3"})
    },
    "nq_open": {
        f"nq_open/NQ-open.{split}.jsonl": lines({"question": "who won", "answer": ["Bo", "B"]})
        for split in ("train", "dev")
    },
    "webquestions": {
        f"webquestions/webquestions.examples.{split}.json": json.dumps(
            [
                {
                    "url": "u",
                    "utterance": "who won?",
                    "targetValue": '(list (description "Bo \\"B\\" D\'A") (description 1999))',
                }
            ]
        )
        for split in ("train", "test")
    },
    "topical_chat": {
        f"Topical-Chat/conversations/{name}.json": json.dumps({"t_1": TALK})
        for name in ("train", "valid_freq", "valid_rare", "test_freq", "test_rare")
    },
}

# task -> split, input, accepted targets of its first example
EXPECTED = {
    "cola": ("train", "cola sentence: Him ran.", ["unacceptable"]),
    "sst2": ("train", "sst2 sentence: so good", ["positive"]),
    "mrpc": ("dev", 'mrpc sentence1: "He ran dev. sentence2: He 1.', ["equivalent"]),
    "stsb": ("dev", "stsb sentence1: A plane takes off. sentence2: An air plane takes off.", ["3.8"]),
    "qqp": ("train", "qqp question1: Why? question2: How?", ["not_duplicate"]),
    "mnli": ("dev_mismatched", "mnli hypothesis: He moved. premise: He ran.", ["contradiction"]),
    "qnli": ("dev", "qnli question: Why? sentence: So.", ["not_entailment"]),
    "rte": ("dev", "rte sentence1: He ran dev. sentence2: He moved.", ["entailment"]),
    "wnli": ("dev", "wnli sentence1: He ran dev. sentence2: He moved.", ["entailment"]),
    "boolq": ("train", "boolq passage: It is so. question: is it so", ["True"]),
    "cb": ("train", "cb hypothesis: He moved. premise: He ran.", ["neutral"]),
    "copa": ("train", "copa (A) It was wet. (B) It was dry. premise: It rained. What was the effect?", ["It was wet."]),
    "multirc": ("train", "multirc question: Who? answer 0 paragraph: A text.", ["False"]),
    "record": (
        "train",
        "record query: @placeholder won. entities: (A) Bo (B) Ann passage: Ann met Bo.\n- Bo won.",
        ["Bo"],
    ),
    "wic": ("train", "wic word: bank: A bank. sentence2: The bank.", ["True"]),
    "wsc": ("dev", "wsc hypothesis: she means Ann text: Ann told Bo that she won.", ["False"]),
    "squad": ("dev", "squad question: What fell? context: Rome fell.", ["Rome"]),
    "squad2": ("dev", "squad question: What fell? context: Rome fell.", ["Rome"]),
    "conll2003": ("train", "conll2003 words: EU rejects German", ["B-ORG O B-MISC"]),
    "wnut17": ("test", "wnut17 words: New York", ["B-location I-location"]),
    "ud_pos": ("test", "pos words: do n't", ["AUX PART"]),
    "ud_number": ("test", "number words: do n't", ["Plur none"]),
    "ud_tense": ("test", "tense words: do n't", ["Pres none"]),
    "ud_depth": ("test", "depth words: do n't", ["0 1"]),
    "swag": ("dev", "swag (A) walks. (B) sits, too. (C) sleeps. (D) eats. context: He runs, she", ["eats."]),
    "piqa": ("dev", "piqa (A) It was wet. (B) It was dry. It rained.", ["It was dry."]),
    "arc_easy": ("test", "arc_easy (A) It was wet. (B) It was dry. It rained.", ["It was dry."]),
    "copa_cloze": ("dev", "copa_cloze (A) It was wet. (B) It was dry. text: It rained.", ["It was dry."]),
    "winogrande": ("dev", "winogrande (A) Ann won, so Ann (B) Ann won, so Bo text: ran.", ["Ann won, so Bo"]),
    "lambada": ("test", "lambada He sat on the", ["mat"]),
    "hellaswag": ("dev", "hellaswag (A) a (B) b (C) c (D) d context: A man. he", ["d"]),
    "openbookqa": ("test", "openbookqa (A) tA (B) tB (C) tC (D) tD question: The sun", ["tD"]),
    "imdb": ("train", "imdb review: bad", ["negative"]),
    "trec": ("train", "trec question: How did serfdom develop ?", ["description"]),
    "sst5": ("dev", "sst5 sentence: It works (", ["good"]),
    "dialogsum": ("test", "summarize: #Person1#: Hi.\n#Person2#: Hello.", ["S1.", "S2.", "S3."]),
    "multi30k": ("test", "translate English to German: A man.", ["Ein Mann."]),
    "svamp": ("test", "svamp question: He had 2 and took 1. How many?", ["3"]),
    "nq_open": ("dev", "nq question: who won", ["Bo", "B"]),
    "webquestions": ("test", "wq question: who won?", ['Bo "B" D\'A', "1999"]),
    "topical_chat": ("dev_rare", "dialogue: Do you like it?", ["Yes."]),
}


@pytest.mark.long
@pytest.mark.parametrize("compressed", [False, True], ids=["plain", "gz"])
@pytest.mark.parametrize("name", shipped_tasks())
def test_a_set_as_its_authors_distribute_it(tmp_path, name, compressed):
    if compressed and name == "imdb":
        pytest.skip("one file an example")
    for path, content in OFFICIAL[name].items() if load_task(name).format != "generated" else ():
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        data = content.encode("latin-1" if name == "trec" else "utf-8")
        if compressed and target.suffix != ".gz":
            target = target.with_name(f"{target.name}.gz")
        target.write_bytes(gzip.compress(data) if target.suffix == ".gz" else data)
    task = load_task(name)
    splits = [split for split in task.splits if not (split == "dev" and name in ("imdb", "trec", "webquestions"))]
    assert available_splits(task, tmp_path) == tuple(splits)
    for split in splits:
        examples = read_examples(task, split, tmp_path)
        assert len(examples) == {"multirc": 2, "conll2003": 2, "squad2": 2, "blimp": 2, "trex": 2}.get(
            name, len(examples)
        )
        assert examples.labelled == (split not in task.unlabelled and not (split == "test" and name in ("cola", "qqp")))
    if name == "blimp":
        assert examples.candidates_of(1) == ["He ran.", "He run."]
        assert (examples.subtasks, examples.fields) == (["a_1", "b_2"], ["syntax", "syntax_semantics"])
    if name == "trex":
        (relation,) = read_facts(task, "test", tmp_path).relations
        assert (relation.name, relation.objects) == ("P19", ("London", "Rome"))
        assert relation.statements == (("[X] was born in", ""), ("The birthplace of [X] is", ""))
    if name not in EXPECTED:
        assert task.kind in ("minimal_pairs", "facts") or task.format == "generated"
        return
    split, text, targets = EXPECTED[name]
    examples = read_examples(task, split, tmp_path)
    assert (render_inputs(examples)[0], render_targets(examples)[0]) == (text, targets)


def test_broken_rows_of_qqp_are_skipped_and_counted(tmp_path):
    (tmp_path / "QQP").mkdir()
    (tmp_path / "QQP/train.tsv").write_text(OFFICIAL["qqp"]["QQP/train.tsv"])
    examples = read_examples(load_task("qqp"), "train", tmp_path)
    assert (len(examples), examples.skipped) == (1, 2)


def test_a_question_of_multirc_has_many_answers_and_one_number(tmp_path):
    (tmp_path / "MultiRC").mkdir()
    second = multirc(True) | {"idx": 4}
    (tmp_path / "MultiRC/val.jsonl").write_text(lines(multirc(True), second))
    examples = read_examples(load_task("multirc"), "dev", tmp_path)
    assert examples.ids == ["3/7/0", "3/7/1", "4/7/0", "4/7/1"]
    assert examples.groups.tolist() == [0, 0, 1, 1]


def test_a_query_of_record_whose_answer_is_no_candidate_has_no_label_and_can_be_scored(tmp_path):
    (tmp_path / "ReCoRD").mkdir()
    odd = record(True)
    odd["qas"][0]["answers"] = [{"start": 0, "end": 0, "text": "Cy"}]
    (tmp_path / "ReCoRD/val.jsonl").write_text(lines(odd))
    examples = read_examples(load_task("record"), "dev", tmp_path)
    assert examples.labels.tolist() == [-100]
    assert examples.targets == [["Cy"]]
