# What the scripts beside this one share. Works with Windows PowerShell 5.1 and PowerShell 7.

function Get-CheckoutRoot {
    Split-Path -Parent (Split-Path -Parent (Split-Path -Parent $PSScriptRoot))
}

function Find-OperatorDataverse {
    # That of this checkout goes before whatever else is on the PATH.
    $own = Join-Path (Get-CheckoutRoot) '.venv\Scripts\operator-dataverse.exe'
    if (Test-Path -LiteralPath $own -PathType Leaf) {
        return $own
    }
    $found = Get-Command -Name 'operator-dataverse' -CommandType Application -ErrorAction SilentlyContinue
    if ($found) {
        return @($found)[0].Source
    }
    return $null
}

function Invoke-OperatorDataverse {
    param(
        [Parameter(Mandatory = $true)] [string[]] $Words,
        [string] $Config
    )
    $program = Find-OperatorDataverse
    if (-not $program) {
        [Console]::Error.WriteLine('Error: operator-dataverse is not installed; run setup.ps1 -Yes beside this script.')
        exit 2
    }
    if ($Config) {
        $Words = @('--config', $Config) + $Words
    }
    & $program @Words
    exit $LASTEXITCODE
}
