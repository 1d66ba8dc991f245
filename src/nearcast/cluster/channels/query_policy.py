"""What a channel's query may contain: a whitelist of statements, relations and functions, checked before Spark sees it.

Spark evaluates constant expressions while it plans, so that a query is dangerous before it runs: `java_method` would
call any Java method in the driver. What is not listed here is refused.
"""

from __future__ import annotations

from sqlglot import exp

__all__ = ["NotUnderstoodError", "PolicyError", "check_length", "check_policy"]

_MOST_CHARACTERS = 20_000
_MOST_NODES = 3_000
_MOST_JOINS = 12
_MOST_DEPTH = 150
_MOST_LAMBDAS = 5  # within each other

# Functions that sqlglot has no class for, by name.
_NAMED = """
    distance acos acosh asin asinh atan atan2 atanh cbrt cos cosh cot csc degrees e exp expm1 factorial hypot log10
    log1p
    log2 pi radians rint sec sin sinh sqrt tan tanh bround ceiling negative positive pmod shiftright shiftrightunsigned
    shiftleft bit_get getbit width_bucket try_add try_subtract try_multiply try_divide try_mod try_element_at try_sum
    try_avg
    try_to_number try_to_timestamp bin conv hex unhex format_number format_string printf to_char to_number isnull
    isnotnull
    nvl2 equal_null zeroifnull nullifzero btrim ltrim rtrim left right char chr char_length character_length
    octet_length
    bit_length overlay position find_in_set levenshtein soundex sentences substring_index ucase lcase split_part
    regexp regexp_like regexp_count regexp_instr regexp_substr regexp_extract_all luhn_check mask to_varchar elt field
    crc32 hash xxhash64 sha1 base64 unbase64 encode decode url_encode url_decode parse_url
    make_date make_timestamp make_interval make_dt_interval make_ym_interval weekday weekofyear dayofyear dayofmonth
    date_part datepart to_utc_timestamp from_utc_timestamp timestamp_seconds timestamp_millis timestamp_micros
    unix_seconds
    unix_millis unix_micros unix_date date_from_unix_date dayname monthname convert_timezone to_timestamp_ntz
    to_timestamp_ltz window window_time now curdate current_timezone localtimestamp
    array_append array_prepend array_compact array_distinct array_except array_insert array_intersect array_join
    array_max
    array_min array_position array_remove array_repeat array_sort array_union arrays_overlap arrays_zip cardinality
    element_at
    flatten forall get sequence slice sort_array zip_with map_concat map_contains_key map_entries map_filter
    map_from_arrays map_from_entries map_keys map_values map_zip_with transform_keys transform_values str_to_map
    named_struct
    from_json to_json json_array_length json_object_keys schema_of_json json_tuple from_csv to_csv
    count_if bool_and bool_or every some any any_value first_value last_value last nth_value ntile percent_rank
    cume_dist
    dense_rank rank lead lag mean median mode min max max_by min_by percentile percentile_cont percentile_disc
    approx_percentile
    skewness kurtosis corr covar_pop covar_samp regr_avgx regr_avgy regr_count regr_intercept regr_r2 regr_slope
    regr_sxx
    regr_sxy regr_syy std stddev_pop stddev_samp var_pop var_samp variance bit_and bit_or bit_xor histogram_numeric
    collect_list collect_set array_agg listagg string_agg grouping grouping_id posexplode posexplode_outer explode
    explode_outer inline inline_outer stack
"""
# Functions and operators that sqlglot has a class for, by the name of the class.
_KNOWN = """
    Abs Acos Acosh AddMonths And AnyValue ApproxDistinct ApproxQuantile ArgMax ArgMin Array ArrayAgg ArrayAll ArrayAny
    ArrayAppend ArrayCompact ArrayConcat ArrayContains ArrayContainsAll ArrayDistinct ArrayExcept ArrayFilter ArrayFirst
    ArrayInsert ArrayIntersect ArrayLast ArrayMax ArrayMin ArrayOverlaps ArrayPosition ArrayPrepend ArrayRemove
    ArraySize
    ArraySlice ArraySort ArrayToString ArrayUnionAgg ArrayUniqueAgg ArraysZip Ascii Asin Asinh Atan Atan2 Atanh Avg
    Base64
    BitLength BitmapCount BitwiseAndAgg BitwiseCount BitwiseOrAgg BitwiseXorAgg BTrim Case Cast Cbrt Ceil Chr Coalesce
    Concat ConcatWs Contains ConvertTimezone Corr Cos Cosh Cot Coth Count CountIf CovarPop CovarSamp Csc Csch CumeDist
    CurrentDate CurrentTimestamp CurrentTimezone Date DateAdd DateDiff DateFromParts DateStrToDate DateSub DateToDi
    DateTrunc Day DayOfMonth DayOfWeek DayOfWeekIso DayOfYear Dayname Decode Degrees DenseRank DiToDate Elt Encode
    EndsWith
    EqualNull Exists Exp Explode ExplodeOuter Extract Factorial Filter First FirstValue Flatten Floor FormatNumber
    FromBase64 FromTimeZone Greatest GroupConcat Hex Hour If IfNull Initcap Inline IsInf IsNan JSONExtract
    JSONExtractScalar JSONFormat JSONKeys Kurtosis Lag Last LastDay LastValue Lead Least Left Length Levenshtein Ln
    Localtimestamp Log LogicalAnd LogicalOr Lower LowerHex MD5 MakeInterval Map MapConcat MapContainsKey MapEntries
    MapFromArrays MapFromEntries MapKeys MapValues Max Median Min Minute Mod Mode Month Monthname MonthsBetween
    Nanvl NextDay NthValue Ntile Nullif Nvl2 Or Pad ParseJSON PercentRank PercentileCont PercentileDisc Pi
    PosexplodeOuter Posexplode Pow Quantile Quarter Radians Rank Reduce RegexpCount RegexpExtract RegexpExtractAll
    RegexpInstr
    RegexpILike RegexpLike RegexpReplace RegexpSplit RegrAvgx RegrAvgy RegrCount RegrIntercept RegrR2 RegrSlope RegrSxx
    RegrSxy RegrSyy Repeat Replace Reverse Right Round RowNumber SHA SHA2 SafeDivide Sec Sech Second Sign Sin Sinh
    Skewness Slice SortArray Soundex Space Split SplitPart Sqrt StarMap StartsWith Stddev StddevPop StddevSamp
    StrPosition
    StrToDate StrToMap StrToTime StrToUnix Struct StructExtract Stuff Substring SubstringIndex Sum Tan Tanh TimeDiff
    TimeStrToDate TimeStrToTime TimeStrToUnix TimeToStr TimeToUnix Timestamp TimestampAdd TimestampDiff
    TimestampFromParts
    TimestampSub TimestampTrunc ToArray ToBase64 ToChar ToMap ToNumber Transform TransformKeys TransformValues
    Translate Trim
    Trunc TryCast TsOrDsAdd TsOrDsDiff TsOrDsToDate TsOrDsToDateStr TsOrDsToTimestamp Unhex UnixDate UnixMicros
    UnixMillis
    UnixSeconds UnixToStr UnixToTime UnixToTimeStr Upper VarMap Variance VariancePop Week WeekOfYear WidthBucket
    Xor Year
    ZipWith JSONArrayAgg ArrayMap Anonymous
"""
_NAMES, _CLASSES = frozenset(_NAMED.split()), frozenset(_KNOWN.split())
_NO_STATEMENTS = (
    exp.Command, exp.DDL, exp.DML, exp.Set, exp.Use, exp.Describe, exp.Show, exp.Pragma, exp.QueryTransform, exp.Hint,
    exp.TableSample, exp.Version, exp.Pivot, exp.MatchRecognize, exp.Into, exp.Lock,
)  # fmt: skip


class PolicyError(ValueError):
    """Why a query is refused. offset: of the part that is not allowed (node) in the text, if it is known."""

    def __init__(self, reason: str, node: exp.Expr | None = None, offset: int | None = None) -> None:
        super().__init__(reason)
        starts = (part.meta["start"] for part in node.walk() if "start" in part.meta) if node is not None else ()
        self.offset = min(starts, default=offset)


class NotUnderstoodError(PolicyError):
    """A query that sqlglot cannot parse."""


def check_length(text: str) -> None:
    """Refuse a text that is too long, before anybody parses it."""
    if len(text) > _MOST_CHARACTERS:
        raise PolicyError(f"the query has {len(text)} characters; {_MOST_CHARACTERS} are allowed")


def check_policy(tree: exp.Expr) -> None:
    """Refuse statements, relations and functions that are not listed, and queries that are too large."""
    if not isinstance(tree, exp.Select | exp.SetOperation | exp.Subquery):
        raise PolicyError("one SELECT is needed")
    count = joins = 0
    for node in tree.walk():
        count += 1
        joins += isinstance(node, exp.Join)
        _check_node(node)
    if count > _MOST_NODES:
        raise PolicyError(f"the query has {count} parts; {_MOST_NODES} are allowed")
    if joins > _MOST_JOINS:
        raise PolicyError(f"the query has {joins} joins; {_MOST_JOINS} are allowed")
    if _depth(tree) > _MOST_DEPTH:
        raise PolicyError(f"the query is nested deeper than {_MOST_DEPTH} levels")
    if (expanded := _expanded_size(tree, {})) > _MOST_NODES:  # a plan of Spark has no time limit
        raise PolicyError(f"the query has {expanded} parts when WITH is written out; {_MOST_NODES} are allowed")


def _check_node(node: exp.Expr) -> None:
    if isinstance(node, _NO_STATEMENTS):
        raise PolicyError(f"{type(node).__name__.upper()} is not allowed in a channel", node)
    if isinstance(node, exp.Table) and not isinstance(node.parent, exp.JoinHint):
        if not isinstance(node.this, exp.Identifier):
            raise PolicyError("a function as a table is not allowed in a channel", node)
        if node.args.get("db") or node.args.get("catalog"):
            raise PolicyError(f"{node.sql('spark', comments=False)}: only datasets can be read, by their names", node)
    if isinstance(node, exp.Anonymous | exp.AnonymousAggFunc):
        if node.name.lower() not in _NAMES:
            raise PolicyError(f"function {node.name.lower()} is not allowed in a channel", node)
    elif isinstance(node, exp.Func) and type(node).__name__ not in _CLASSES:
        raise PolicyError(f"function {node.sql_name().lower()} is not allowed in a channel", node)
    if isinstance(node, exp.Lambda) and _lambdas_around(node) >= _MOST_LAMBDAS:
        raise PolicyError(f"functions of elements are nested deeper than {_MOST_LAMBDAS} levels", node)
    if isinstance(node, exp.Placeholder) and not node.name:
        raise PolicyError("parameters have names, such as :kind", node)
    if isinstance(node, exp.With) and node.recursive:
        raise PolicyError("WITH RECURSIVE is not allowed in a channel", node)


def _lambdas_around(node: exp.Expr) -> int:
    count, holder = 0, node.parent
    while holder is not None:
        count += isinstance(holder, exp.Lambda)
        holder = holder.parent
    return count


def _depth(tree: exp.Expr) -> int:
    deepest, level = 0, [tree]
    while level:
        deepest += 1
        level = [child for node in level for child in node.iter_expressions()]
    return deepest


def _expanded_size(node: exp.Expr, named: dict[str, int]) -> int:
    """The parts of a query in which each name of a WITH stands for its query, as Spark plans it.

    named: the size of what is named so far. Twenty names, each used twice by the next, are a million queries.
    """
    size = 1
    if isinstance(node, exp.Table):
        size += named.get(node.name.lower(), 0)
    children = list(node.iter_expressions())
    for definitions in (child for child in children if isinstance(child, exp.With)):
        named = dict(named)
        for definition in definitions.expressions:
            named[definition.alias.lower()] = _expanded_size(definition.this, named)
    return size + sum(_expanded_size(child, named) for child in children if not isinstance(child, exp.With))
